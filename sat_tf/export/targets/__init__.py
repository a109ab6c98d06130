"""The processors that a file is made for, and what each of them takes.

`table.TARGETS` has a row for each, `constraints` what operators have to be like.
"""
