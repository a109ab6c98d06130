def run(start, work, bits, seed, overrides):
    raise NotImplementedError
