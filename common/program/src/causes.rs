//! Walks an error and its causes, and writes the text of a failed call.

use std::{error::Error, iter::successors};

/// Returns the error and its causes, from the outermost to the innermost.
pub fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// Returns the causes of an error in one line, from the outermost to the innermost. Its own text is
/// left out if it has a cause: that of an HTTP client repeats the URL, which may contain a secret.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = chain(error).skip(1).map(ToString::to_string).collect();
    if texts.is_empty() { error.to_string() } else { texts.join(": ") }
}

/// Returns the text of the innermost cause, such as "connection refused".
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct Call(&'static str, Option<Box<dyn Error>>);

    impl fmt::Display for Call {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Call {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref()
        }
    }

    #[test]
    fn text_has_all_causes_and_no_url() {
        let reset = io::Error::new(io::ErrorKind::ConnectionReset, "connection reset");
        let connect = Call("client error (Connect)", Some(Box::new(reset)));
        let call = Call("error for url (http://user:secret@cloud)", Some(Box::new(connect)));
        assert_eq!(causes(&call), "client error (Connect): connection reset");
        assert_eq!(root_cause(&call), "connection reset");
        let alone = Call("no cause", None);
        assert_eq!((causes(&alone), root_cause(&alone)), ("no cause".into(), "no cause".into()));
    }
}
