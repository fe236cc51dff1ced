"""SGLang servers: started, watched, loaded by the client, ended; and what their logs say."""
