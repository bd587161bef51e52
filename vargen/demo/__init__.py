"""A page to play with: pictures drawn side by side, answers about videos as they come, methods compared.

`app.py` builds the page, one file a tab says what is on it and what happens there, `requests.py` what happens on all of
them from the click to the end; the rest is work without a page (`work.py`, `race.py`), the process that does it
(`worker.py`), and markup. Gradio is imported only where a page is built.
"""
