//! Parses `HEM_PARAMETERS`. Pure; `rule` defines the meaning of the parameters.

use serde::Deserialize;
use serde_json::Value;

/// Why a rule could not be created. The message names the remedy.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    /// `HEM_NAME` is not one of the rules.
    #[error("unknown hard example algorithm {name:?}; known are {known}")]
    UnknownRule { name: String, known: String },
    /// The rule does not have this parameter.
    #[error("{rule} has no parameter {key:?}; it knows {known}")]
    UnknownParameter { rule: &'static str, key: String, known: String },
    /// The value is not a number in 0..=1.
    #[error("parameter {key:?} of {rule} must be a number from 0 to 1, not {value}")]
    BadValue { rule: &'static str, key: String, value: String },
    /// `HEM_PARAMETERS` is not a JSON list of key and value.
    #[error(
        "parameters must be a JSON list like [{{\"key\": \"threshold\", \"value\": \"0.5\"}}]: {0}"
    )]
    Malformed(String),
}

#[derive(Deserialize)]
struct Parameter {
    key: String,
    value: Value,
}

/// The values of the `N` parameters of `rule`, in the order of `known`, which contains names and
/// defaults. Values may be JSON numbers or strings with a number. The last value of a key counts.
pub(crate) fn read<const N: usize>(
    rule: &'static str,
    json: &str,
    known: [(&str, f64); N],
) -> Result<[f64; N], Error> {
    let mut values = known.map(|(_, default)| default);
    for Parameter { key, value } in parse(json)? {
        let Some(position) = known.iter().position(|(name, _)| *name == key) else {
            return Err(Error::UnknownParameter {
                rule,
                key,
                known: list(&known.map(|(name, _)| name)),
            });
        };
        values[position] = match number(&value) {
            Some(number) if (0.0..=1.0).contains(&number) => number,
            _ => {
                return Err(Error::BadValue { rule, key, value: value.to_string() });
            }
        };
    }
    Ok(values)
}

pub(crate) fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// An empty string (an unset variable) and `null` (an absent list) mean "all defaults".
fn parse(json: &str) -> Result<Vec<Parameter>, Error> {
    if json.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str::<Option<Vec<Parameter>>>(json)
        .map(Option::unwrap_or_default)
        .map_err(|error| Error::Malformed(error.to_string()))
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const KNOWN: [(&str, f64); 2] = [("threshold_img", 0.5), ("threshold_box", 0.5)];

    #[test]
    fn absent_parameters_are_the_defaults() {
        for json in ["", "  ", "[]", "null"] {
            assert_eq!(read("IBT", json, KNOWN), Ok([0.5, 0.5]), "{json:?}");
        }
    }

    #[test]
    fn values_are_strings_or_numbers_and_the_last_one_counts() {
        let json = r#"[{"key":"threshold_box","value":" 0.25 "},{"key":"threshold_img","value":1},{"key":"threshold_img","value":"0.75"}]"#;
        assert_eq!(read("IBT", json, KNOWN), Ok([0.75, 0.25]));
    }

    #[test]
    fn value_outside_0_to_1_is_refused_by_name() {
        for value in
            ["\"many\"", "\"\"", "\"NaN\"", "\"inf\"", "1.01", "-0.1", "null", "true", "[0.5]"]
        {
            let error =
                read("IBT", &format!(r#"[{{"key":"threshold_img","value":{value}}}]"#), KNOWN)
                    .unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("parameter \"threshold_img\" of IBT must be a number from 0 to 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn unknown_parameter_is_refused_with_the_known_ones() {
        let error = read("IBT", r#"[{"key":"threshold","value":"0.5"}]"#, KNOWN).unwrap_err();
        assert_eq!(
            error.to_string(),
            "IBT has no parameter \"threshold\"; it knows threshold_img, threshold_box"
        );
        let error = read("EdgeOnly", r#"[{"key":"x","value":"0.5"}]"#, []).unwrap_err();
        assert_eq!(error.to_string(), "EdgeOnly has no parameter \"x\"; it knows none");
    }

    #[test]
    fn anything_but_a_list_of_key_and_value_is_malformed() {
        for json in
            ["{", "{}", "3", "[3]", r#"[{"key":"threshold_img"}]"#, r#"[{"key":1,"value":"0.5"}]"#]
        {
            assert!(matches!(read("IBT", json, KNOWN), Err(Error::Malformed(_))), "{json}");
        }
    }
}
