"""`vargen serve`: pictures over HTTP, as OpenAI's client asks for them.

Belongs here: the thread that draws (`engine.py`) and the application before it (`app.py`). Does not belong here: how
pictures are drawn (`vargen.pipelines`), and the page for visitors (`vargen.demo`).
"""
