"""Methods of published tables, one file each: a policy that names one loads it."""
