# Sources and private headers of data/ (datasets, samplers, the loader and its workers). Part of libctrt.
