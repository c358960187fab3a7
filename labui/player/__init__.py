"""The step-by-step figure: one component for the browser, and its mount in a page."""
