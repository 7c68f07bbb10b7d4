"""Every rule that refuses a request, one function a rule, one closed set of reasons."""
