//! How a kubelet replaces variables in the command, the arguments and the environment of a container:
//! the rule of `third_party/forked/golang/expansion` in Kubernetes.

use std::collections::BTreeMap;

/// Replaces `$(NAME)` by the value of a variable and `$$` by `$`. A reference to an unknown variable
/// stays, and so does any other `$` before an ASCII character.
pub fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let bytes = text.as_bytes();
    let (mut expanded, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let next = bytes.get(at + 1);
        at += match (bytes[at], next) {
            (b'$', Some(b'$')) => {
                expanded.push(b'$');
                2
            }
            (b'$', Some(b'(')) => {
                if let Some((name, _)) = text[at + 2..].split_once(')') {
                    let reference = &text[at..at + name.len() + 3];
                    let value = variables.get(name).map_or(reference, String::as_str);
                    expanded.extend_from_slice(value.as_bytes());
                    reference.len()
                } else {
                    expanded.extend_from_slice(b"$(");
                    2
                }
            }
            // Kubernetes makes a character of one byte, also of a part of a longer character.
            (b'$', Some(byte)) => {
                let character = char::from(*byte);
                expanded.extend_from_slice(format!("${character}").as_bytes());
                2
            }
            (byte, _) => {
                expanded.push(byte);
                1
            }
        };
    }
    String::from_utf8_lossy(&expanded).into_owned()
}

/// The environment of a container from its list of variables. A variable without a text has its
/// value from elsewhere. A text can refer to the variables before it.
pub fn environment<'a>(
    variables: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    from_elsewhere: impl Fn(&str) -> String,
) -> BTreeMap<String, String> {
    let mut environment = BTreeMap::new();
    for (name, text) in variables {
        let value = text.map_or_else(|| from_elsewhere(name), |text| expand(text, &environment));
        environment.insert(name.to_owned(), value);
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of Kubernetes' own test, shortened.
    #[test]
    fn texts_are_expanded_as_kubernetes_does() {
        let variables = [("A", "a"), ("B", "$(A)"), ("", "empty")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        for (text, expanded) in [
            ("$(A)", "a"),
            ("---$(A)-$(A)---", "---a-a---"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$", "$$"),
            ("$(B)", "$(A)"),
            ("$(missing)", "$(missing)"),
            ("$()", "empty"),
            ("$(A", "$(A"),
            ("$A ${A} $", "$A ${A} $"),
            ("$((A)", "$((A)"),
            ("[ $$ != 1 ]", "[ $ != 1 ]"),
            ("$\u{e9}", "$\u{c3}\u{fffd}"),
        ] {
            assert_eq!(expand(text, &variables), expanded, "{text}");
        }
    }

    #[test]
    fn variable_refers_only_to_those_before_it() {
        let variables = [("A", Some("$(C)$(P)")), ("P", None), ("C", Some("$(A)$(P)"))];
        let environment = environment(variables, |name| format!("of {name}"));
        let values = ["A", "P", "C"].map(|name| environment[name].as_str());
        assert_eq!(values, ["$(C)$(P)", "of P", "$(C)$(P)of P"]);
    }
}
