"""Reports: what to hand over to the next shift, and what an override did, as Markdown or as one HTML file.

`handover` and `audit` collect the facts into a document, `markdown` and `html` write it. Front ends use both.
"""
