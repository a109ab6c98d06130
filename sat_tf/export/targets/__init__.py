"""The processors that a file is made for, and what each of them takes.

`table.TARGETS` has a row for each, `target` says what a row is, `constraints` what operators have
to be like.
"""
