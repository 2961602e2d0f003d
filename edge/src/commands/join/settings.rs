//! The settings file of the agent: `NAME='value'` lines that systemd and a shell read. Pure.

use std::{collections::BTreeMap, fmt::Write as _};

/// The line before the settings of a join.
const HEADING: &str = "# Written by neptune-edge join:";

/// The settings of the connection to the cloud, which a join replaces and `leave` removes. Those
/// without a value in a join contradict it: the user of a certificate has no password.
const CONNECTION: [&str; 9] = [
    "NEPTUNE_NODE_NAME",
    "NEPTUNE_TRANSPORT",
    "NEPTUNE_MQTT_URL",
    "NEPTUNE_MQTT_CA_FILE",
    "NEPTUNE_MQTT_CERT_FILE",
    "NEPTUNE_MQTT_KEY_FILE",
    "NEPTUNE_MQTT_PASSWORD_FILE",
    "NEPTUNE_INSECURE_BROKER",
    "NEPTUNE_TOPIC_PREFIX",
];

/// Returns the settings of a file. A later line of a name wins. Lines that are not `NAME=value` are
/// left out.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(assignment);
    pairs.map(|(name, value)| (name.to_owned(), unquoted(value).to_owned())).collect()
}

/// Returns the file with the settings of a join instead of the present settings of the connection.
/// Everything else stays as it is. The values contain no quote.
#[must_use]
pub fn with_join(text: &str, settings: &[(&'static str, String)]) -> String {
    let mut merged = without(text, |name| {
        CONNECTION.contains(&name) || settings.iter().any(|(set, _)| *set == name)
    });
    if !merged.is_empty() {
        merged.push('\n');
    }
    merged.push_str(HEADING);
    merged.push('\n');
    for (name, value) in settings {
        let _ = writeln!(merged, "{name}='{value}'");
    }
    merged
}

/// Returns the file without the settings of the connection; it is empty if nothing is left.
#[must_use]
pub fn without_join(text: &str) -> String {
    without(text, |name| CONNECTION.contains(&name))
}

fn without(text: &str, is_removed: impl Fn(&str) -> bool) -> String {
    let is_kept = |line: &&str| {
        *line != HEADING && assignment(line).is_none_or(|(name, _)| !is_removed(name))
    };
    let kept: Vec<_> = text.lines().filter(is_kept).collect();
    let kept = kept.join("\n");
    let kept = kept.trim_end();
    if kept.is_empty() { String::new() } else { format!("{kept}\n") }
}

/// The name and the value of a line, if it sets one.
fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((name, value))
}

/// The value as systemd reads it: it ignores spaces around it, and a shell allows none.
fn unquoted(value: &str) -> &str {
    let value = value.trim();
    for quote in ['\'', '"'] {
        if let Some(inner) = value.strip_prefix(quote) {
            return inner.split_once(quote).map_or(inner, |(inner, _)| inner);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const OPERATOR: &str = "\
# My node
NEPTUNE_DATA_DIR='/data'
#NEPTUNE_MQTT_URL='mqtts://example'
NEPTUNE_MQTT_URL='mqtts://edge0:p%40ss@old.example:30883'
NEPTUNE_MQTT_PASSWORD_FILE=/etc/neptune/password

NEPTUNE_ALLOW_DEVICE=\"a=/dev/a\"
";

    fn joined() -> Vec<(&'static str, String)> {
        vec![
            ("NEPTUNE_NODE_NAME", "edge0".to_owned()),
            ("NEPTUNE_MQTT_URL", "mqtts://new.example:30885".to_owned()),
        ]
    }

    #[test]
    fn join_replaces_the_connection_and_keeps_the_rest() {
        let merged = with_join(OPERATOR, &joined());
        assert_eq!(
            merged,
            "# My node\nNEPTUNE_DATA_DIR='/data'\n#NEPTUNE_MQTT_URL='mqtts://example'\n\n\
             NEPTUNE_ALLOW_DEVICE=\"a=/dev/a\"\n\n# Written by neptune-edge join:\n\
             NEPTUNE_NODE_NAME='edge0'\nNEPTUNE_MQTT_URL='mqtts://new.example:30885'\n"
        );
        assert_eq!(with_join(&merged, &joined()), merged, "repeated");
        assert_eq!(
            with_join("", &joined()),
            "# Written by neptune-edge join:\nNEPTUNE_NODE_NAME='edge0'\n\
             NEPTUNE_MQTT_URL='mqtts://new.example:30885'\n"
        );
    }

    #[test]
    fn settings_are_read_with_and_without_quotes() {
        let settings = parse(OPERATOR);
        let value = |name: &str| settings.get(name).map(String::as_str);
        assert_eq!(value("NEPTUNE_DATA_DIR"), Some("/data"));
        assert_eq!(value("NEPTUNE_MQTT_PASSWORD_FILE"), Some("/etc/neptune/password"));
        assert_eq!(value("NEPTUNE_ALLOW_DEVICE"), Some("a=/dev/a"));
        assert_eq!(value("NEPTUNE_MQTT_URL"), Some("mqtts://edge0:p%40ss@old.example:30883"));
        assert_eq!(parse("export A= b \nno line\n=x\nA B=c"), parse("A=b"));
        assert_eq!(parse("A=1\nA=2")["A"], "2");
    }

    #[test]
    fn leaving_removes_what_a_join_wrote() {
        assert_eq!(without_join(&with_join("", &joined())), "");
        let kept = without_join(&with_join(OPERATOR, &joined()));
        assert!(!kept.contains("old.example") && kept.contains("ALLOW_DEVICE"), "{kept}");
        assert!(!kept.contains(HEADING), "{kept}");
    }

    proptest! {
        #[test]
        fn any_file_keeps_its_other_lines_and_repeats(text in "([A-Z_#]{0,4}=?'?[a-z ]{0,3}'?\n){0,6}") {
            let merged = with_join(&text, &joined());
            prop_assert_eq!(with_join(&merged, &joined()), merged.clone());
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                prop_assert!(merged.lines().any(|other| other == line.trim_end() || other == line), "{:?}", line);
            }
            prop_assert_eq!(&parse(&merged)["NEPTUNE_NODE_NAME"], "edge0");
        }
    }
}
