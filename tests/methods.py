"""The methods that a policy names, as the fields of one: tests of all of them go through this."""

METHODS = {
    "lsq": {"weight_quantizer": "lsq", "activation_quantizer": "lsq"},
    "lsq_plus": {"weight_quantizer": "lsq", "activation_quantizer": "lsq_plus"},
    "l1": {"weight_quantizer": "l1", "weight_options": {"over_size": False}},
    "kmeans": {"weight_quantizer": "kmeans"},
    # Weights that move between clusters, beside weights of 0, which stay.
    "kmeans_reassigned": {
        "weight_quantizer": "kmeans",
        "rescale": "constant",
        "weight_options": {"reassign": True, "keep_zeros": True, "initialization": "density"},
    },
    "lq_nets": {"weight_quantizer": "lq_nets"},
    # 1 bit is a choice too, so that channels differ if 2 is the mean.
    "channel_bits": {
        "weight_quantizer": "channel_bits",
        "weight_options": {"lowest": 1, "over_size": False},
    },
    "qil": {"weight_quantizer": "qil"},
    # SAT's rescaling of the classifier and its activations, with weights of LSQ.
    "lsq_in_sat": {
        "weight_quantizer": "lsq",
        "rescale": "constant",
        "weight_options": {"start": "error", "surrogate": "dsq"},
        "activation_options": {"surrogate": "ewgs"},
    },
    "dsq": {"weight_options": {"surrogate": "dsq"}, "activation_options": {"surrogate": "dsq"}},
    "ewgs": {
        "weight_options": {"surrogate": "ewgs", "surrogate_strength": 0.01},
        "activation_quantizer": "lsq",
        "activation_options": {"surrogate": "ewgs", "start": "error", "counts_batch": True},
    },
}
