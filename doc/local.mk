# Manual pages go into dist_man7_MANS, other documents into dist_doc_DATA (installed) or EXTRA_DIST (not installed).
dist_doc_DATA +=
