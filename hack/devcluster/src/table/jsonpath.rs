//! The `JSONPath` of printer columns: fields, indices from either end, slices, wildcards and equality filters. Pure.

use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    Filter(JsonPath, Comparison, Value),
    Has(JsonPath),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
}

/// A parsed path such as `.status.conditions[-1].type`.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Step>);

impl JsonPath {
    /// The error tells what could not be read.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|inner| inner.strip_suffix('}')).unwrap_or(text);
        let mut rest = text.strip_prefix('$').or_else(|| text.strip_prefix('@')).unwrap_or(text);
        if !rest.is_empty() && !rest.starts_with(['.', '[']) {
            return Err(format!("{text:?} must start with '.' or '['"));
        }
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let end =
                    closing(after).ok_or_else(|| format!("unterminated array in {text:?}"))?;
                steps.push(bracket(after[..end].trim())?);
                rest = &after[end + 1..];
            } else {
                rest = rest.strip_prefix('.').ok_or_else(|| format!("unexpected {rest:?}"))?;
                let (name, length) = field_name(rest);
                match name.as_str() {
                    "" if rest.is_empty() || rest.starts_with('[') => {}
                    "" => return Err(format!("recursive descent is not supported in {text:?}")),
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(name)),
                }
                rest = &rest[length..];
            }
        }
        Ok(Self(steps))
    }

    /// The first value that the path finds.
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.all(root).into_iter().next()
    }

    fn all<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        self.0.iter().fold(vec![root], |found, step| {
            found.into_iter().flat_map(|value| step.apply(value)).collect()
        })
    }
}

/// A field name up to the next unescaped `.` or `[`, and how much text it took.
fn field_name(text: &str) -> (String, usize) {
    let (mut name, mut escaped) = (String::new(), false);
    for (position, c) in text.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => return (name, position),
            _ => {
                name.push(c);
                escaped = false;
            }
        }
    }
    (name, text.len())
}

/// The position of the bracket that closes the one before `text`.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (position, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(position),
            (None, ']') => depth -= 1,
            // Any other character, and all of them inside of quotes.
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Result<Step, String> {
    if text == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = unquoted(text) {
        return Ok(Step::Field(name));
    }
    if let Some(filter) = text.strip_prefix("?(").and_then(|inner| inner.strip_suffix(')')) {
        for (operator, comparison) in [("==", Comparison::Equal), ("!=", Comparison::NotEqual)] {
            if let Some((left, right)) = filter.split_once(operator) {
                return Ok(Step::Filter(
                    JsonPath::parse(left.trim())?,
                    comparison,
                    literal(right.trim()),
                ));
            }
        }
        return Ok(Step::Has(JsonPath::parse(filter.trim())?));
    }
    let number = |part: &str| {
        part.trim().parse::<i64>().map_err(|_| format!("invalid array index {text:?}"))
    };
    match text.split_once(':') {
        None => Ok(Step::Index(number(text)?)),
        Some((from, to)) => {
            let bound =
                |part: &str| if part.trim().is_empty() { Ok(None) } else { number(part).map(Some) };
            Ok(Step::Slice(bound(from)?, bound(to)?))
        }
    }
}

fn unquoted(text: &str) -> Option<String> {
    ['\'', '"']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
        .map(str::to_owned)
}

fn literal(text: &str) -> Value {
    unquoted(text)
        .map_or_else(|| serde_json::from_str(text).unwrap_or_else(|_| text.into()), Value::String)
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(position) => at(*position, items.len())
                .and_then(|position| items.get(position))
                .into_iter()
                .collect(),
            Self::Slice(from, to) => {
                let bound = |end: &Option<i64>, default| {
                    end.map_or(default, |end| at(end, items.len()).unwrap_or(0)).min(items.len())
                };
                let (from, to) = (bound(from, 0), bound(to, items.len()));
                items.get(from..to).into_iter().flatten().collect()
            }
            Self::All => match value {
                Value::Object(map) => map.values().collect(),
                _ => items.iter().collect(),
            },
            Self::Filter(path, comparison, wanted) => items
                .iter()
                .filter(|item| {
                    path.first(item).is_some_and(|found| {
                        (found == wanted) == (*comparison == Comparison::Equal)
                    })
                })
                .collect(),
            Self::Has(path) => items.iter().filter(|item| path.first(item).is_some()).collect(),
        }
    }
}

/// An index from either end; none before the start.
fn at(position: i64, length: usize) -> Option<usize> {
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
    fn paths_find_what_kubectl_finds() {
        let object = json!({"spec": {"a.b": 7}, "status": {"c": [{"type": "A", "v": 1}, {"type": "B", "v": 2}]}, "l": [1, 2, 3]});
        let table = [
            (".status.c[-1].type", Some(json!("B"))),
            (".status.c[0].v", Some(json!(1))),
            (".status.c[5].v", None),
            (".status.c[-5].v", None),
            (r#".status.c[?(@.type=="B")].v"#, Some(json!(2))),
            (".status.c[?(@.type!='B')].v", Some(json!(1))),
            (".status.c[*].type", Some(json!("A"))),
            (".l[1:]", Some(json!(2))),
            (".l[-1:]", Some(json!(3))),
            ("{.l[2]}", Some(json!(3))),
            (".spec['a.b']", Some(json!(7))),
            (r".spec.a\.b", Some(json!(7))),
            (".none.deep", None),
        ];
        for (path, expected) in table {
            assert_eq!(JsonPath::parse(path).unwrap().first(&object).cloned(), expected, "{path}");
        }
    }

    #[test]
    fn malformed_paths_are_refused() {
        for path in ["spec", ".a[", ".a[x]", ".a[1"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }
}
