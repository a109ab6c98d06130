"""The certificate: what it holds, and how it comes about.

`proof` makes it, from a `comparison` on `inputs`, and with `outputs` for the accuracy;
`certificate` is what is written as JSON, where a new field needs a default so that older files can
be read; `page` writes the page, and both.
"""
