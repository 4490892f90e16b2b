"""``bayesrnn explore``: a local web page on trained runs. Only this machine, and only with the token, can ask it."""
