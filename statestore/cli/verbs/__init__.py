"""The verbs of the command ``statestore``: one module each, with its options, JSON and text.

A verb calls the library and returns a value. Parsing and drawing that several verbs share belong in
``cli``. A new verb needs nothing but its module: the table of verbs is read from the declarations
here, ``@click.command("name", cls=Verb, section="heading", …)``, one argument a line.
"""
