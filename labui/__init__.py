"""What the pages share: everything that imports streamlit and is used by more than one page."""
