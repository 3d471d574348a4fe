"""What several families share; no family itself, and no torch in here.

`common` reads keys that nearly all configurations have and puts a decoder together; the other files are decoder shapes
of a few families each, and `vision_language` finds the text decoder in a checkpoint that sees images.
"""
