"""An HTTP server with OpenAI's interface, for the models that ``load_model`` takes.

``app.application`` is the Starlette application, ``runner`` lets the model write several answers concurrently,
``protocol`` has the bodies of requests and errors, ``description`` makes a grammar of what a request asks for, and one
module for each endpoint makes the answers.
"""
