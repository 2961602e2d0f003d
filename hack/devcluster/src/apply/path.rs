//! Sets of field paths in the form of `FieldsV1`, with union, difference and intersection. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// One element of a path in its `FieldsV1` form: `f:spec`, `k:{"name":"a"}`, `v:"x"`, `i:0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element(String);

impl Element {
    pub fn field(name: &str) -> Self {
        Self(format!("f:{name}"))
    }

    /// The identity of a map-list element.
    pub fn key(identity: &Value) -> Self {
        Self(format!("k:{}", sorted(identity)))
    }

    /// The identity of a set element.
    pub fn value(value: &Value) -> Self {
        Self(format!("v:{}", sorted(value)))
    }

    fn parse(text: &str) -> Option<Self> {
        let (tag, rest) = text.split_once(':')?;
        match tag {
            "f" | "i" => Some(Self(text.to_owned())),
            "k" => serde_json::from_str(rest).ok().map(|identity| Self::key(&identity)),
            "v" => serde_json::from_str(rest).ok().map(|value| Self::value(&value)),
            _ => None,
        }
    }

    /// The name, when this is a field.
    pub fn as_field(&self) -> Option<&str> {
        self.0.strip_prefix("f:")
    }

    /// The element as conflict messages show it: `.spec`, `[name="a"]`, `[="x"]`.
    fn shown(&self) -> String {
        let (tag, rest) = self.0.split_at(2);
        match tag {
            "f:" => format!(".{rest}"),
            "k:" => {
                let identity: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
                let pairs: Vec<String> =
                    identity.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("[{}]", pairs.join(","))
            }
            "v:" => format!("[={rest}]"),
            _ => format!("[{rest}]"),
        }
    }
}

/// JSON with sorted keys.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<&String, &Value> = map.iter().collect();
            let parts: Vec<String> = ordered
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), sorted(value)))
                .collect();
            format!("{{{}}}", parts.join(","))
        }
        other => other.to_string(),
    }
}

/// A set of paths as a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    members: BTreeSet<Element>,
    children: BTreeMap<Element, FieldSet>,
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(FieldSet::is_empty)
    }

    pub fn insert(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    pub fn has(&self, element: &Element) -> bool {
        self.members.contains(element)
    }

    /// The paths under an element, without that element.
    pub fn under(&self, element: &Element) -> Option<&FieldSet> {
        self.children.get(element).filter(|set| !set.is_empty())
    }

    pub fn children(&self) -> impl Iterator<Item = (&Element, &FieldSet)> {
        self.children.iter()
    }

    pub fn add_member(&mut self, element: Element) {
        self.members.insert(element);
    }

    pub fn set_child(&mut self, element: Element, set: FieldSet) {
        self.children.insert(element, set);
    }

    /// Removes an element and all paths under it.
    pub fn remove_tree(&mut self, element: &Element) {
        self.members.remove(element);
        self.children.remove(element);
    }

    pub fn remove_path(&mut self, path: &[Element]) {
        match path {
            [] => {}
            [last] => {
                self.members.remove(last);
            }
            [first, rest @ ..] => {
                if let Some(child) = self.children.get_mut(first) {
                    child.remove_path(rest);
                }
            }
        }
    }

    /// Removes branches without paths, so that equal sets compare equal.
    pub fn compact(&mut self) {
        self.children.retain(|_, set| {
            set.compact();
            !set.is_empty()
        });
    }

    #[must_use]
    pub fn union(&self, other: &FieldSet) -> FieldSet {
        let mut result = self.clone();
        result.members.extend(other.members.iter().cloned());
        for (element, set) in &other.children {
            let merged =
                result.children.get(element).map_or_else(|| set.clone(), |mine| mine.union(set));
            result.children.insert(element.clone(), merged);
        }
        result
    }

    /// Paths of this set that are not in the other. An element of the other set does not remove its
    /// children.
    #[must_use]
    pub fn difference(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.difference(&other.members).cloned().collect();
        let children = self
            .children
            .iter()
            .map(|(element, set)| {
                let rest = other
                    .children
                    .get(element)
                    .map_or_else(|| set.clone(), |theirs| set.difference(theirs));
                (element.clone(), rest)
            })
            .filter(|(_, set)| !set.is_empty())
            .collect();
        FieldSet { members, children }
    }

    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let members = self.members.intersection(&other.members).cloned().collect();
        let children = self
            .children
            .iter()
            .filter_map(|(element, set)| {
                Some((element.clone(), set.intersection(other.children.get(element)?)))
            })
            .filter(|(_, set)| !set.is_empty())
            .collect();
        FieldSet { members, children }
    }

    /// All paths as messages show them.
    pub fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self.members.iter().map(Element::shown).collect();
        for (element, set) in &self.children {
            paths.extend(set.paths().iter().map(|rest| format!("{}{rest}", element.shown())));
        }
        paths.sort();
        paths
    }

    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        for element in &self.members {
            map.insert(element.0.clone(), Value::Object(Map::new()));
        }
        for (element, set) in self.children.iter().filter(|(_, set)| !set.is_empty()) {
            let mut node = set.to_fields_v1();
            if self.members.contains(element) {
                node["."] = Value::Object(Map::new());
            }
            map.insert(element.0.clone(), node);
        }
        Value::Object(map)
    }

    /// Returns `None` when the value is not a `FieldsV1`.
    pub fn from_fields_v1(value: &Value) -> Option<FieldSet> {
        let mut set = FieldSet::default();
        for (key, node) in value.as_object()? {
            if key == "." {
                continue;
            }
            let element = Element::parse(key)?;
            let node_map = node.as_object()?;
            if node_map.is_empty() || node_map.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = FieldSet::from_fields_v1(node)?;
            if !child.is_empty() {
                set.children.insert(element, child);
            }
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn set(value: &Value) -> FieldSet {
        FieldSet::from_fields_v1(value).unwrap()
    }

    #[test]
    fn fields_v1_survives_a_round_trip() {
        let text = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}, "f:finalizers": {".": {}, "v:\"a/b\"": {}}},
            "f:spec": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}}});
        assert_eq!(set(&text).to_fields_v1(), text);
    }

    #[test]
    fn set_operations_work_on_single_paths() {
        let a = set(&json!({"f:spec": {".": {}, "f:a": {}, "f:b": {}}}));
        let b = set(&json!({"f:spec": {"f:b": {}, "f:c": {}}}));
        assert_eq!(a.difference(&b), set(&json!({"f:spec": {".": {}, "f:a": {}}})));
        assert_eq!(a.intersection(&b), set(&json!({"f:spec": {"f:b": {}}})));
        assert_eq!(
            a.union(&b),
            set(&json!({"f:spec": {".": {}, "f:a": {}, "f:b": {}, "f:c": {}}}))
        );
    }

    #[test]
    fn paths_have_the_form_of_conflict_messages() {
        let a = set(
            &json!({"f:spec": {"f:containers": {"k:{\"name\":\"x\"}": {"f:image": {}}}, "f:set": {"v:1": {}}}}),
        );
        assert_eq!(a.paths(), [r#".spec.containers[name="x"].image"#, ".spec.set[=1]"]);
    }
}
