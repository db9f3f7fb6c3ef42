-- A small public library: what it has, who reads there, and what is lent.
CREATE TABLE authors (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  country TEXT NOT NULL
);
CREATE TABLE books (
  id INTEGER PRIMARY KEY,
  title TEXT NOT NULL,
  author_id INTEGER NOT NULL REFERENCES authors (id),
  year INTEGER NOT NULL,
  pages INTEGER NOT NULL,
  shelf TEXT NOT NULL
);
CREATE TABLE loans (
  id INTEGER PRIMARY KEY,
  book_id INTEGER NOT NULL REFERENCES books (id),
  reader TEXT NOT NULL,
  lent_on TEXT NOT NULL,
  fine REAL NOT NULL
);

INSERT INTO authors (id, name, country) VALUES
  (1, 'Imogen Farrow', 'Ireland'),
  (2, 'Tomas Lindqvist', 'Sweden'),
  (3, 'Adaeze Nwosu', 'Nigeria'),
  (4, 'Paulo Brandao', 'Portugal'),
  (5, 'Yuki Hanada', 'Japan');

INSERT INTO books (id, title, author_id, year, pages, shelf) VALUES
  (1, 'The Peat Cutters', 1, 1998, 312, 'novels'),
  (2, 'A Field Guide to Bog Plants', 1, 2004, 188, 'nature'),
  (3, 'Ice Roads', 2, 2011, 264, 'travel'),
  (4, 'Lights over Lule', 2, 2017, 405, 'novels'),
  (5, 'The Salt Market', 3, 2020, 351, 'novels'),
  (6, 'Cooking with Cassava', 3, 2015, 142, 'cooking'),
  (7, 'Lisbon on Foot', 4, 2009, 226, 'travel'),
  (8, 'Small Gardens', 5, 1987, 96, 'nature'),
  (9, 'The Paper Moon Tram', 5, 2022, 278, 'novels'),
  (10, 'Pickles of the North', 5, 2019, 131, 'cooking');

INSERT INTO loans (id, book_id, reader, lent_on, fine) VALUES
  (1, 1, 'Beatrix', '2025-03-02', 0.0),
  (2, 5, 'Omar', '2025-03-04', 0.5),
  (3, 9, 'Beatrix', '2025-03-11', 0.0),
  (4, 4, 'Chen', '2025-03-15', 2.25),
  (5, 6, 'Dita', '2025-03-15', 0.0),
  (6, 5, 'Chen', '2025-04-01', 0.75),
  (7, 3, 'Omar', '2025-04-08', 0.0),
  (8, 9, 'Dita', '2025-04-20', 0.0);
