//! What a rule can know of a value before there is one: its type, and how large it can be. Pure.
//!
//! Sizes are those of the API server's estimate: bytes of a text (four to a character of `maxLength`), elements of a list or a map, one
//! for anything else. What no schema bounds is as large as the longest request allows.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use serde_json::json;

use crate::schema::Schema;

/// The longest request, in bytes.
const REQUEST: u64 = 3 * 1024 * 1024;

/// A size that cannot be told.
pub const UNKNOWN: u64 = u64::MAX;

/// A type with a size.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub kind: Kind,
    /// The largest that it can be.
    pub size: u64,
}

/// The types of the language, as far as rules of schemas have them.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Anything: what it is shows only when the rule runs.
    Any,
    Null,
    Bool,
    Int,
    Double,
    String,
    Url,
    /// The elements.
    List(Rc<Shape>),
    /// The values; keys are texts.
    Map(Rc<Shape>),
    /// The fields.
    Object(Rc<BTreeMap<String, Shape>>),
    /// A text that the API server reads as something else, which is not done here.
    Unread(&'static str),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Double => f.write_str("double"),
            Self::String => f.write_str("string"),
            Self::Url => f.write_str("kubernetes.URL"),
            Self::List(items) => write!(f, "list({})", items.kind),
            Self::Map(values) => write!(f, "map(string, {})", values.kind),
            Self::Object(_) => f.write_str("object"),
            Self::Unread(format) => f.write_str(format),
        }
    }
}

impl Shape {
    /// A value of one size.
    pub fn scalar(kind: Kind) -> Self {
        Self { kind, size: 1 }
    }

    pub fn string(size: u64) -> Self {
        Self { kind: Kind::String, size }
    }

    pub fn list(items: Shape, size: u64) -> Self {
        Self { kind: Kind::List(Rc::new(items)), size }
    }

    /// Bytes of the value with all that is in it.
    pub fn whole(&self) -> u64 {
        match &self.kind {
            Kind::List(part) | Kind::Map(part) => self.size.saturating_mul(part.whole().max(1)),
            Kind::Object(fields) => {
                fields.values().fold(1, |sum: u64, field| sum.saturating_add(field.whole()))
            }
            _ => self.size,
        }
    }

    /// The same type, but no size is known: so an API server sees what a rule itself put together.
    pub fn of_unknown_size(&self) -> Self {
        let kind = match &self.kind {
            Kind::List(part) => Kind::List(Rc::new(part.of_unknown_size())),
            Kind::Map(part) => Kind::Map(Rc::new(part.of_unknown_size())),
            Kind::Object(fields) => {
                let forget =
                    |(name, field): (&String, &Shape)| (name.clone(), field.of_unknown_size());
                Kind::Object(Rc::new(fields.iter().map(forget).collect()))
            }
            kind @ (Kind::Null | Kind::Bool | Kind::Int | Kind::Double) => {
                return Self::scalar(kind.clone());
            }
            kind => kind.clone(),
        };
        Self { kind, size: UNKNOWN }
    }

    /// What two branches have in common; `None` when that is nothing.
    pub fn join(&self, other: &Self) -> Option<Self> {
        let kind = match (&self.kind, &other.kind) {
            (Kind::Any, kind) | (kind, Kind::Any) => kind.clone(),
            (Kind::List(one), Kind::List(two)) => Kind::List(Rc::new(one.join(two)?)),
            (Kind::Map(one), Kind::Map(two)) => Kind::Map(Rc::new(one.join(two)?)),
            (Kind::Object(one), Kind::Object(two)) if one.keys().eq(two.keys()) => {
                self.kind.clone()
            }
            (one, two) if one == two => one.clone(),
            _ => return None,
        };
        Some(Self { kind, size: self.size.max(other.size) })
    }
}

/// The shape of what a schema describes, and the least that it takes in a request; `None` for what rules cannot see.
pub fn of(schema: Schema<'_>) -> Option<(Shape, u64)> {
    if schema.is_int_or_string() {
        let size = schema.count("maxLength").map_or(REQUEST - 2, in_bytes);
        return Some((Shape { kind: Kind::Any, size }, 1));
    }
    let fixed = |kind: Kind, least: u64| Some((Shape::scalar(kind), least));
    match schema.kind()? {
        "array" => {
            let (items, least) = of(schema.items()?)?;
            let size = schema.count("maxItems").map_or((REQUEST - 2) / (least + 1), elements);
            Some((Shape::list(items, size), 2))
        }
        "object" => match schema.additional() {
            Some(values) => {
                let (values, least) = of(values)?;
                let limit = schema.count("maxProperties");
                let size = limit.map_or((REQUEST - 2) / (least + 6), elements);
                Some((Shape { kind: Kind::Map(Rc::new(values)), size }, 2))
            }
            None => Some(object(schema)),
        },
        "string" => Some(string(schema)),
        "boolean" => fixed(Kind::Bool, 4),
        "number" => fixed(Kind::Double, 1),
        "integer" => fixed(Kind::Int, 1),
        _ => None,
    }
}

/// The shape of a whole custom resource: rules see of its metadata the names.
pub fn of_root(schema: Schema<'_>) -> Shape {
    let names = json!({"type": "object", "properties": {
        "name": {"type": "string"}, "generateName": {"type": "string"}}});
    let text = json!({"type": "string"});
    let (Shape { kind, size }, _) = object(schema);
    let Kind::Object(fields) = kind else { return Shape { kind, size } };
    let mut fields = Rc::unwrap_or_clone(fields);
    for (name, of_name) in [("apiVersion", &text), ("kind", &text), ("metadata", &names)] {
        fields.extend(Schema::new(of_name).and_then(of).map(|(shape, _)| (name.to_owned(), shape)));
    }
    Shape { kind: Kind::Object(Rc::new(fields)), size }
}

fn object(schema: Schema<'_>) -> (Shape, u64) {
    let required = schema.list("required");
    let mut fields = BTreeMap::new();
    let mut least = 2;
    for (name, property) in schema.properties() {
        let Some((shape, least_of_field)) = of(property) else { continue };
        if required.iter().any(|wanted| wanted == name) && property.get("default").is_none() {
            least += name.len() as u64 + least_of_field + 4;
        }
        fields.insert(name.clone(), shape);
    }
    (Shape { kind: Kind::Object(Rc::new(fields)), size: UNKNOWN }, least)
}

fn string(schema: Schema<'_>) -> (Shape, u64) {
    let unread = |format| (Shape { kind: Kind::Unread(format), size: REQUEST - 2 }, 2);
    match schema.text("format") {
        Some("byte") => return unread("bytes"),
        Some("date" | "date-time") => return unread("timestamp"),
        Some("duration") => return unread("duration"),
        _ => {}
    }
    let of_words = || {
        let words = schema.list("enum").iter().filter_map(|word| word.as_str());
        words.map(str::len).max().map(|length| length as u64)
    };
    let size = schema.count("maxLength").map(in_bytes).or_else(of_words).unwrap_or(REQUEST - 2);
    (Shape::string(size), 2)
}

fn in_bytes(characters: usize) -> u64 {
    elements(characters).saturating_mul(4)
}

fn elements(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// How often a value that takes at least this much can stand in a request.
pub fn most_in_a_request(least: u64) -> u64 {
    REQUEST / (least + 1)
}
