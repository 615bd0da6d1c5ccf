"""Calls of tools in what models write: one reader per family, pure text in, events out.

Knows no engine and no protocol. Nothing a model writes is ever evaluated; all work is linear in the
length of the text.
"""
