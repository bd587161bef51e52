"""A page to play with: pictures drawn side by side, answers about videos as they come, methods compared.

`app.py` builds the page, and each tab has a file. `controls.py` has components that tabs share, and `requests.py` what
happens from the click to the end. The rest is work without a page (`work.py`, `race.py`), and markup.
"""
