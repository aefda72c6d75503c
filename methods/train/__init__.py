"""How draft heads are made: corpus, features, losses, loop. ``python -m methods.train method=eagle``; docs/training.md.

Four stages, each of which finds its own finished work and goes on from there:

    corpus     dialogues that the target writes itself, and text that it only reads      writing, reading, corpus
    features   the target's post-norm hidden states over them, on disk                   features
    training   one module a paper, one loop                                              eagle medusa hydra sps, loop
    export     the published layout, in bfloat16, and a manifest                         export
"""
