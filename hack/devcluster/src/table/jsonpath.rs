//! The `JSONPath` of printer columns: fields, indices from either end and equality filters. Pure.
//!
//! Other forms are refused when a definition is written.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// The position of an element; from the end if it is negative.
    Index(i64),
    /// The elements in which the path has the value.
    Filter(JsonPath, Value),
}

/// A parsed path such as `.status.conditions[-1].type`.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

impl JsonPath {
    /// Parses a path; the error names the part that is not supported.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut rest = text.strip_prefix('@').unwrap_or(text);
        if !rest.starts_with('.') {
            return Err(format!("{text:?} must be a simple json path starting with ."));
        }
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (inner, after) =
                    bracketed(after).ok_or_else(|| format!("unterminated array in {text:?}"))?;
                steps.push(step(inner)?);
                rest = after;
            } else {
                rest = rest.strip_prefix('.').ok_or_else(|| format!("unexpected {rest:?}"))?;
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                let (name, after) = rest.split_at(end);
                if name.is_empty() || name == "*" {
                    return Err(format!("devcluster supports no wildcards in {text:?}"));
                }
                steps.push(Step::Field(name.to_owned()));
                rest = after;
            }
        }
        Ok(Self(steps))
    }

    /// The first value at the path.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.0.iter().try_fold(root, |value, step| match step {
            Step::Field(name) => value.get(name),
            Step::Index(position) => {
                let items = value.as_array()?;
                items.get(from_either_end(*position, items.len())?)
            }
            Step::Filter(path, wanted) => {
                value.as_array()?.iter().find(|item| path.first(item) == Some(wanted))
            }
        })
    }
}

/// The text up to the closing bracket and the text after it; brackets in quotes do not count.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    for (position, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ']') => return Some((&text[..position], &text[position + 1..])),
            _ => {}
        }
    }
    None
}

fn step(text: &str) -> Result<Step, String> {
    if let Some(filter) = text.strip_prefix("?(").and_then(|inner| inner.strip_suffix(')')) {
        let (left, right) = filter
            .split_once("==")
            .ok_or_else(|| format!("devcluster supports only == in {text:?}"))?;
        let wanted = right.trim().replace('\'', "\"");
        let wanted = serde_json::from_str(&wanted).map_err(|_| format!("invalid {right:?}"))?;
        return Ok(Step::Filter(JsonPath::parse(left.trim())?, wanted));
    }
    text.parse().map(Step::Index).map_err(|_| format!("invalid array index {text:?}"))
}

fn from_either_end(position: i64, length: usize) -> Option<usize> {
    if position >= 0 {
        usize::try_from(position).ok()
    } else {
        length.checked_sub(usize::try_from(position.unsigned_abs()).ok()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_find_the_values_that_kubectl_finds() {
        let object = json!({"spec": {"n": 7}, "status": {"c": [{"type": "A", "v": 1}, {"type": "B", "v": 2}]}});
        let table = [
            (".spec.n", Some(json!(7))),
            (".status.c[-1].type", Some(json!("B"))),
            (".status.c[0].v", Some(json!(1))),
            (".status.c[5].v", None),
            (".status.c[-5].v", None),
            (r#".status.c[?(@.type=="B")].v"#, Some(json!(2))),
            (".status.c[?(@.type=='A')].v", Some(json!(1))),
            (".none.deep", None),
        ];
        for (path, expected) in table {
            assert_eq!(JsonPath::parse(path).unwrap().first(&object).cloned(), expected, "{path}");
        }
    }

    #[test]
    fn unsupported_paths_are_refused() {
        for path in ["spec", "", ".a[", ".a[x]", ".a[1", ".a[*]", ".*", "..a", ".a[?(@.b)]"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
