"""Pages of the app; each is a script that `st.navigation` runs."""
