# SPDX-License-Identifier: Apache-2.0
# Sphinx: the Markdown of docs/ as a site, with the headers through Doxygen's XML (make docs).
import os

project = "quern"
author = "the quern developers"
extensions = ["myst_parser", "breathe"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "quern"
html_static_path = []
exclude_patterns = ["adr/README.md", "site"]
breathe_projects = {"quern": os.environ.get("QUERN_DOXYGEN_XML", "xml")}
breathe_default_project = "quern"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False
primary_domain = "c"
highlight_language = "c"
# Links out of docs/ (sources, records) are right on the repository's pages and have no page here.
suppress_warnings = ["myst.xref_missing", "toc.not_included", "misc.highlighting_failure"]
nitpicky = False
