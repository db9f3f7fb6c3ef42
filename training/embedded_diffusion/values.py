"""The values that tasks are about: pools of words, and draws of numbers, dates and identifiers.

Every pool keeps a tenth of its words, and every range of numbers one stretch, out of training: what a model does with
those it has learnt to do, not to recall.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

__all__ = ["POOLS", "ValueSampler", "is_held_out"]

_FIRST_NAMES = """
Ada Alan Alice Amara Amir Anders Andrea Anna Anton Aria Arthur Astrid Aurora Axel Barbara Beatriz Ben Bianca Boris
Brigitte Bruno Camila Carl Carlos Carmen Cecilia Celine Chiara Chloe Clara Claude Daniel Daria David Deniz Diana Diego
Dmitri Dora Edith Eleni Elias Elif Elin Elsa Emil Emma Enzo Erik Esther Eva Fabio Fatima Felix Fiona Flora Frank Freya
Gabriel Georg Gina Giulia Grace Greta Hana Hannah Hans Hassan Helena Hugo Ida Igor Ines Ingrid Irene Isabel Ivan Iris
Jacob James Jana Javier Jonas Jorge José Julia Karim Katrin Kenji Klara Kofi Lars Laura Lea Leila Lena Leo Liam Lina
Linh Lola Lucas Lucia Luis Magda Mara Marco Maria Marta Martin Mateo Maya Mei Mia Milan Mina Mira Moritz Nadia Naomi
Nico Nina Noah Nora Olga Oliver Omar Oscar Otto Pablo Paula Pedro Petra Pia Priya Rafael Ravi Rita Robert Rosa Ruth
Samir Samuel Sara Simon Sofia Sonja Stefan Sven Tariq Teresa Theo Thomas Tina Tomas Ursula Valentin Vera Victor Viola
Walter Yara Yasmin Yuki Yusuf Zoë Zeno
"""
_SURNAMES = """
Abbas Adler Ahmed Almeida Alvarez Anand Andersen Aydin Bauer Becker Bell Berger Bianchi Blanc Boateng Bondar Brandt
Brown Bruun Carter Castro Chen Clarke Cohen Costa Cruz Dahl Delgado Dietz Dubois Duarte Eder Egger Ekberg Engel Evans
Falk Farah Ferrari Fischer Fontana Foster Frank Fuchs Garcia Gruber Haas Hansen Hara Hayes Heller Hill Hoang Hofer
Holm Horvat Huber Ibrahim Ito Ivanov Jansen Jensen Kaiser Kamau Karlsson Kaya Keller Khan Kim Klein Koch Kovac Kraus
Kumar Lang Larsen Lee Lehner Lim Lindgren Lopez Lorenz Luca Maier Marino Marsh Martins Mbeki Mendes Meyer Mills
Molina Moreau Moser Müller Murphy Nagy Nakamura Navarro Nielsen Novak Okafor Olsen Ortiz Osman Patel Pereira Petrov
Pham Pichler Popov Quinn Rahman Ramos Reed Reiter Richter Rios Rossi Roth Rubin Sanchez Santos Sato Schmid Schwarz
Shah Silva Singh Soto Steiner Stone Suzuki Svensson Tanaka Thaler Torres Tran Unger Vargas Vidal Vogel Wagner Walsh
Wang Weber Weiss Winter Wolf Wong Yamada Yilmaz Young Zhang Ziegler
"""
_CITIES = """
Aarhus Accra Adelaide Algiers Amman Antwerp Athens Auckland Austin Baku Bangkok Basel Beirut Belgrade Bergen Berlin
Bern Bogota Bologna Bonn Boston Brasilia Bremen Brno Bristol Brussels Bucharest Budapest Cairo Calgary Cardiff Chennai
Chicago Cologne Cork Dakar Dallas Delhi Denver Dhaka Dresden Dublin Dubai Durban Essen Faro Florence Gdansk Geneva
Genoa Ghent Glasgow Graz Hamburg Hanoi Harare Havana Helsinki Hobart Houston Innsbruck Istanbul Jakarta Kampala
Karachi Kigali Krakow Kyiv Kyoto Lagos Leeds Leipzig Leuven Lima Linz Lisbon London Luanda Lund Lusaka Lyon Madrid
Malaga Malmö Managua Manila Maputo Medellin Melbourne Miami Milan Minsk Montreal Mumbai Munich Nairobi Nantes Naples
Nice Osaka Oslo Ottawa Oxford Palermo Paris Perth Porto Prague Quito Rabat Reykjavik Riga Rome Rotterdam Salzburg
Santiago Seattle Seoul Seville Sofia Split Stockholm Sydney Taipei Tallinn Tampere Tbilisi Tokyo Toronto Toulouse
Trieste Tunis Turin Turku Uppsala Utrecht Valencia Venice Vienna Vilnius Warsaw Zagreb Zürich
"""
_STREETS = """
Acorn Alder Anchor Apple Ash Bakers Bay Beech Birch Bridge Brook Cedar Chapel Cherry Church Clay Cliff College Copper
Coral Crown Dock Dove Eagle Elm Fern Field Forest Garden Gate Glen Grove Harbour Hazel Hill Holly Iron Ivy Juniper
Kings Lake Laurel Lilac Lime Linden Maple Market Meadow Mill Moss Myrtle Oak Olive Orchard Park Pearl Pine Poplar
Quarry Queens River Rose Rowan Sage Salt School Silver Spring Station Stone Sunset Temple Tower Valley Vine Walnut
Water Willow
"""
_STREET_KINDS = "Street Road Lane Avenue"
_ADJECTIVES = """
Amber Ancient Blue Bold Bright Broken Calm Clear Cold Crimson Dark Deep Distant Early Empty Endless Fading Final Fresh
Frozen Gentle Golden Grand Green Grey Hidden Hollow Hungry Icy Inner Jolly Last Light Little Lonely Lost Loud Lucky
Mellow Misty Modern Narrow New Noble Northern Odd Old Open Pale Patient Perfect Plain Proud Quiet Rapid Rare Red
Restless Royal Rusty Sacred Secret Sharp Shining Silent Simple Slow Small Smooth Soft Solar Steady Strange Sweet
Swift Tall Tender Tiny Upper Velvet Vivid Warm Western White Wild Winter Wise Young
"""
_NOUNS = """
Anchor Arrow Autumn Bell Bird Boat Book Bridge Candle Castle Circle Clock Cloud Coast Comet Compass Corner Crane Dawn
Desert Door Dragon Dream Drum Dust Echo Ember Feather Field Fire Flame Flower Forest Fountain Fox Garden Ghost Glass
Harbour Heart Hill Horizon Hour House Island Journey Key King Kitchen Ladder Lake Lantern Leaf Letter Lion Machine Map
Marble Meadow Mirror Moon Morning Mountain Night Ocean Orchard Owl Palace Paper Path Pearl Piano Planet Queen Rain
Raven River Road Room Sail Sand Sea Season Shadow Ship Shore Silence Sky Snow Song Spark Spring Star Stone Storm Sun
Table Thunder Tide Tower Train Tree Valley Violin Voice Wall Wave Whale Wheel Wind Window Wolf Wood
"""
_GOODS = """
apron backpack ball bench bicycle blanket blender board bottle bowl box brush bucket cable camera candle carpet chair
charger clock coat cup curtain cushion desk drill easel envelope fan flute fork frame glove guitar hammer hat headset
helmet hose jacket jar kettle keyboard kite knife ladder lamp laptop mat mirror mixer monitor mouse mug napkin needle
notebook oven paddle pan pencil phone pillow plate printer pump puzzle racket radio razor ruler saddle saw scarf
scooter screen shelf shirt shovel skate sofa speaker spoon stapler stool stove suitcase table tablet tent toaster
torch towel tray tripod umbrella vase wallet watch whisk wrench
"""
_DISHES = """
biryani borscht burger burrito casserole chili chowder couscous crepe curry dal dumpling falafel frittata goulash
gratin hotpot kebab lasagne moussaka noodles omelette paella pancake pasta pie pilaf pizza polenta porridge quiche
ramen ratatouille ravioli risotto roast salad schnitzel skewer soup stew stroganoff stuffing sushi taco tagine tart
tofu
"""
_INGREDIENTS = """
almond apple bacon barley basil bean beef beet butter cabbage carrot celery cheese chicken chive cinnamon coconut corn
cream cucumber cumin dill egg fennel fig flour garlic ginger ham honey kale leek lemon lentil lime mango mint mushroom
mustard nutmeg oat olive onion orange oregano paprika parsley pea peanut pear pepper plum pork potato pumpkin radish
rice rosemary saffron sage salmon salt sesame shrimp spinach sugar thyme tomato tuna turnip vanilla vinegar walnut
yeast yoghurt
"""
_JOBS = """
accountant actor analyst architect baker barista biologist bookkeeper brewer builder butcher buyer carpenter cashier
chef chemist cleaner clerk coach courier curator dancer dentist designer developer diver doctor driver editor
electrician engineer farmer florist gardener geologist glazier guard guide jeweller joiner judge lawyer lecturer
librarian lifeguard manager mechanic midwife miner model nurse optician painter pharmacist photographer pilot plumber
porter printer producer programmer ranger receptionist reporter roofer sailor scientist secretary singer statistician
surgeon surveyor tailor teacher tester translator tutor vet waiter welder writer
"""
_COMPANIES = """
Acorda Alphix Apexa Arbora Arcadis Atlasio Auralis Axiona Betano Bluefin Brightly Calyx Candela Cirrus Cobalto Corvus
Delphia Dynamo Elementa Emberly Equinox Everfield Fabrikam Fjordia Fluxor Gaia Globex Greenway Halcyon Helios Hexagon
Hydra Indigo Inventa Jasper Kestrel Kinetix Lumina Lyra Magnolia Meridian Monarch Nebula Nexus Nimbus Northwind Novum
Octavia Omnia Onyx Orbit Orion Pacifica Parallax Pinnacle Polaris Quanta Quasar Radius Redwood Rivera Sable Sapphire
Sequoia Solara Spectra Stellar Summit Tandem Tectonic Terra Titan Topaz Umbra Unison Vantage Vector Velora Vertex
Vortex Wavelet Westfold Xenon Yonder Zenith Zephyr
"""
_TEAMS = """
Arrows Badgers Bears Beavers Bisons Bulls Buzzards Cobras Comets Condors Cougars Coyotes Cranes Dolphins Dragons
Eagles Falcons Foxes Giants Griffins Hawks Herons Hornets Hounds Hunters Jaguars Kestrels Knights Lancers Lions Lynxes
Mariners Mustangs Otters Owls Panthers Pirates Pumas Rams Raptors Ravens Rangers Rebels Rockets Royals Sailors Saints
Sharks Spartans Stags Stallions Storks Swans Swifts Tigers Titans Vikings Vipers Wasps Wolves
"""
_CHORES = """
account album bathtub bedroom bill boiler cake calendar car cellar certificate chimney closet computer contract
curtains dishes dog engine fence fish floor form fridge garage garden gift grill gutter hedge homework invoice laundry
lawn letter library licence luggage mail medicine mower oven package paint parcel passport plants policy pool
presentation rent report roof room rug shed shoes silver sink slides stairs stove suit taxes ticket tools tyres visa
windows
"""
_VERBS = "book bring buy check clean collect fetch fix move order paint pay plan renew return sell sort wash wrap write"
_COMPONENTS = """
api auth backup billing browser cache calendar cart chat checkout cli client compiler console cron daemon dashboard
database deploy desktop docs driver editor email export feed filter firewall form gateway graph importer index
installer kernel launcher layout ledger linker loader logger login mailer menu mobile monitor network notifier parser
payment player plugin portal printer profile proxy queue renderer router sandbox scanner scheduler search server
session settings shell sidebar signup storage stream sync table terminal theme timer toolbar tracker updater upload
viewer wallet widget wizard worker
"""
_FAULTS = """
crash on start|blank page|wrong total|slow response|lost data|broken link|memory leak|bad encoding|missing icon|
endless loop|wrong colour|double entry|null value|dead button|stale cache|timeout on save|wrong date|text overlap|
failed import|flaky test|frozen screen|missing header|no sound|bad sort order|empty list|wrong currency|unreadable font|
lost focus|high load|duplicate rows|broken layout|silent failure|wrong language|late update|cut off text|bad rounding
"""
_HOTELS = """
Albatros Alpenblick Ambassador Astoria Bellevue Belvedere Bristol Capri Carlton Central Colonnade Continental Cordial
Cristal Eden Edelweiss Elysium Esplanade Europa Excelsior Flamingo Fortuna Gloria Grandview Hermitage Imperial Jupiter
Kosmos Lakeside Majestic Marina Mercury Metropol Miramar Mirabell Monopol Neptune Oasis Olympia Panorama Paradiso
Parkside Phoenix Plaza Regent Regina Ritz Riviera Roma Savoy Schlosshof Seaview Splendid Steinhof Strand Terminus
Tivoli Triton Venezia Victoria Weingarten Westend
"""
_RIVERS = """
Adige Amazon Amur Arno Avon Clyde Congo Danube Dee Dnieper Don Douro Drava Ebro Elbe Ganges Garonne Indus Inn Isar
Jordan Loire Main Mekong Meuse Moselle Mur Murray Neckar Neva Niger Nile Oder Ohio Orinoco Po Rhine Rhone Sava Seine
Severn Shannon Spree Tagus Thames Tiber Tigris Trent Tyne Ural Vistula Volga Weser Yukon Zambezi
"""
_PETS = """
Angus Bandit Barney Bella Biscuit Blitz Bolt Bonny Bubbles Buddy Buster Cappu Casper Charlie Chester Cleo Coco Cookie
Dexter Duke Dusty Felix Fluffy Frodo Ginger Gizmo Goldie Hazel Jasper Jinx Kiki Kira Loki Lulu Maggie Max Merlin Milo
Minka Misty Mochi Molly Momo Nala Nelly Nugget Oreo Oscar Patch Peanut Pepper Pippa Poppy Pumpkin Rex Rocky Romeo
Rufus Rusty Sandy Scout Shadow Simba Smokey Snowy Socks Spot Teddy Tiger Toby Trixie Waldi Whiskers Ziggy
"""
_DOMAINS = "mail web post inbox home office studio works planet garden river orbit"
_ENDINGS = "com org net io eu"

_ONSETS, _VOWELS = (
    tuple(text.split())
    for text in ("b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z", "a e i o u ai ea ia io ou")
)
_CODAS = ["", "", "", "l", "n", "r", "s", "x", "m", "nd", "rt", "ck"]

POOLS: dict[str, tuple[str, ...]] = {
    name: tuple(dict.fromkeys(word.strip() for word in (text.split("|") if "|" in text else text.split())))
    for name, text in {
        "first": _FIRST_NAMES,
        "surname": _SURNAMES,
        "city": _CITIES,
        "street": _STREETS,
        "street_kind": _STREET_KINDS,
        "adjective": _ADJECTIVES,
        "noun": _NOUNS,
        "good": _GOODS,
        "dish": _DISHES,
        "ingredient": _INGREDIENTS,
        "job": _JOBS,
        "company": _COMPANIES,
        "team": _TEAMS,
        "chore": _CHORES,
        "verb": _VERBS,
        "component": _COMPONENTS,
        "fault": _FAULTS,
        "hotel": _HOTELS,
        "river": _RIVERS,
        "pet": _PETS,
        "domain": _DOMAINS,
        "ending": _ENDINGS,
    }.items()
}
_CLOSED = frozenset({"street_kind", "domain", "ending"})  # too few words to keep any out
_INVENTED = frozenset({"first", "surname", "city", "street", "company", "hotel", "pet"})
_INVENTED_SHARE = 0.15


def is_held_out(word: str) -> bool:
    """Whether a word of a pool, or an invented one, is kept out of training."""
    return zlib.crc32(word.encode()) % 10 == 0


_SEEN = {
    name: words if name in _CLOSED else tuple(word for word in words if not is_held_out(word))
    for name, words in POOLS.items()
}
_UNSEEN = {
    name: words if name in _CLOSED else tuple(word for word in words if is_held_out(word))
    for name, words in POOLS.items()
}


@final
class ValueSampler:
    """Draws the values of one record.

    Args:
        random: where chance comes from.
        unseen: whether words and numbers are those that are kept out of training.
    """

    def __init__(self, random: random.Random, *, unseen: bool) -> None:
        self.random = random
        self.unseen = unseen

    def word(self, pool: str) -> str:
        """Draw a word of a pool; in training some names are invented, so that there is no end of them."""
        if self.unseen:
            return self.random.choice(_UNSEEN[pool])
        if pool in _INVENTED and self.random.random() < _INVENTED_SHARE:
            return self._invented()
        return self.random.choice(_SEEN[pool])

    def words(self, pool: str, count: int) -> list[str]:
        """Draw different words of a pool."""
        found: list[str] = []
        while len(found) < count:
            word = self.word(pool)
            if word not in found:
                found.append(word)
        return found

    def _invented(self) -> str:
        choice = self.random.choice
        while True:
            syllables = [
                choice(_ONSETS) + choice(_VOWELS) + choice(_CODAS) for _ in range(2 + (self.random.random() < 0.3))
            ]
            word = "".join(syllables).capitalize()
            if not is_held_out(word):
                return word

    def chance(self, probability: float = 0.5) -> bool:
        """Toss a coin."""
        return self.random.random() < probability

    def one_of(self, values: Sequence[str]) -> str:
        """Draw a value of an enumeration; nothing is kept out there."""
        return self.random.choice(values)

    def integer(self, low: int, high: int, *, kept: tuple[int, int]) -> int:
        """Draw an integer; those from ``kept[0]`` to ``kept[1]`` are kept out of training."""
        if self.unseen:
            return self.random.randint(*kept)
        while True:
            value = self.random.randint(low, high)
            if not kept[0] <= value <= kept[1]:
                return value

    def decimal(self, low: int, high: int, *, kept: tuple[int, int], digits: int = 2) -> float:
        """Draw a decimal number whose integer part is drawn as an ``integer``."""
        unit: int = 10**digits
        return round(self.integer(low, high, kept=kept) + self.random.randrange(unit) / unit, digits)

    def date(self, first: int = 2015, last: int = 2032) -> str:
        """Draw a date; all of 2023 is kept out."""
        year = self.integer(first, last, kept=(2023, 2023))
        return f"{year}-{self.random.randint(1, 12):02}-{self.random.randint(1, 28):02}"

    def time(self) -> str:
        """Draw hours and minutes; all from 14:00 to 15:59 is kept out."""
        return f"{self.integer(0, 23, kept=(14, 15)):02}:{self.random.randint(0, 59):02}"

    def person(self) -> str:
        """Draw a first name and a surname."""
        return f"{self.word('first')} {self.word('surname')}"

    def title(self) -> str:
        """Draw the title of a work."""
        article = "The " if self.chance(0.3) else ""
        return f"{article}{self.word('adjective')} {self.word('noun')}"
