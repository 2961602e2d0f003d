//! Sets each leaf of a CRD's spec in tests, one at a time, and compares what the pure steps make of
//! the object. A field that changes nothing is accepted and ignored.
#![allow(clippy::panic)]

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube_core::{CustomResourceExt, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// What the steps make of an object: the text of its plan, or that of its findings.
pub type Outcome = Result<String, String>;

/// The pure steps of a kind, as one function.
pub type OutcomeOf<'a, K> = &'a dyn Fn(&K) -> Outcome;

/// Asserts that each leaf of the spec changes the plan of one of the samples, for one of its values.
/// `exceptions` are the others, with the reason: a path such as `edgeWorker.model.name`, or the
/// beginning of paths, which ends with a dot.
pub fn assert_each_has_an_effect<K>(samples: &[(K, OutcomeOf<'_, K>)], exceptions: &[(&str, &str)])
where
    K: Resource + CustomResourceExt + Serialize + DeserializeOwned,
{
    let crd = K::crd().spec.versions.remove(0).schema.and_then(|schema| schema.open_api_v3_schema);
    let mut schema = crd.expect("the CRD has a schema");
    let spec =
        schema.properties.as_mut().and_then(|all| all.remove("spec")).expect("it has a spec");
    let (mut without_effect, mut used) = (Vec::new(), BTreeSet::new());
    for path in paths(&spec) {
        let name = path.iter().map(Step::as_str).collect::<Vec<_>>().join(".");
        let mut strongest = Effect::None;
        for (sample, outcome) in samples {
            strongest = strongest.max(effect(sample, &spec, &path, outcome));
            if strongest == Effect::Plan {
                break;
            }
        }
        if strongest == Effect::Plan {
            continue;
        }
        let covers = |(exception, _): &&(&str, &str)| {
            name == *exception || exception.ends_with('.') && name.starts_with(exception)
        };
        match exceptions.iter().find(covers) {
            Some((exception, _)) => drop(used.insert(*exception)),
            None => without_effect.push(format!("{name}: {strongest:?}")),
        }
    }
    assert!(without_effect.is_empty(), "no plan depends on {without_effect:#?}");
    let unused = exceptions.iter().filter(|(exception, _)| !used.contains(exception));
    assert_eq!(unused.count(), 0, "each exception is needed: {used:?}");
}

/// Asserts that labels and annotations of the object change nothing of its plan.
pub fn assert_labels_have_no_effect<K: Resource + Clone>(samples: &[(K, OutcomeOf<'_, K>)]) {
    let mark = || [("team".to_owned(), "blue".to_owned())].into();
    for (sample, outcome) in samples {
        let mut marked = sample.clone();
        marked.meta_mut().labels = Some(mark());
        marked.meta_mut().annotations = Some(mark());
        let expected = outcome(sample);
        assert!(expected.is_ok(), "the sample is valid: {expected:?}");
        assert_eq!(outcome(&marked), expected);
    }
}

/// What the values of a leaf change at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Effect {
    #[default]
    None,
    Findings,
    Plan,
}

/// One step of a path: a field, the first item of a list, or an entry of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Item,
    Entry(&'static str),
}

impl Step {
    fn as_str(&self) -> &str {
        match self {
            Self::Field(name) => name,
            Self::Item => "[]",
            Self::Entry(_) => "{}",
        }
    }
}

/// The paths of all leaves below a schema.
fn paths(schema: &JSONSchemaProps) -> Vec<Vec<Step>> {
    let below = |step: Step, schema: &JSONSchemaProps| {
        let paths = paths(schema).into_iter();
        paths.map(|path| [step.clone()].into_iter().chain(path).collect()).collect::<Vec<_>>()
    };
    if let Some(fields) = &schema.properties {
        return fields.iter().flat_map(|(name, it)| below(Step::Field(name.clone()), it)).collect();
    }
    match (item(schema), entry(schema)) {
        (Some(item), _) => below(Step::Item, item),
        (_, Some(entry)) => below(Step::Entry(key(entry)), entry),
        _ => vec![Vec::new()],
    }
}

fn item(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrArray;
    match schema.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn entry(schema: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrBool;
    match schema.additional_properties.as_ref()? {
        JSONSchemaPropsOrBool::Schema(entry) => Some(entry),
        JSONSchemaPropsOrBool::Bool(_) => None,
    }
}

/// The key of an entry of a map: of limits a resource that each container may have.
fn key(entry: &JSONSchemaProps) -> &'static str {
    if entry.x_kubernetes_int_or_string == Some(true) { "cpu" } else { "k" }
}

fn effect<K: Serialize + DeserializeOwned>(
    sample: &K,
    schema: &JSONSchemaProps,
    path: &[Step],
    outcome: OutcomeOf<'_, K>,
) -> Effect {
    let object = serde_json::to_value(sample).expect("a sample is JSON");
    let with = |value: Option<&Value>| -> Option<Outcome> {
        let mut object = object.clone();
        set(&mut object["spec"], schema, path, value);
        Some(outcome(&serde_json::from_value(object).ok()?))
    };
    let leaf = path.iter().fold(schema, |schema, step| below(schema, step));
    let values = candidates(leaf);
    let mut outcomes: Vec<_> = values.iter().filter_map(|value| with(Some(value))).collect();
    outcomes.extend(with(None));
    if has(&object["spec"], path) {
        outcomes.push(outcome(sample));
    }
    let differ = |a: &Outcome, b: &Outcome| match (a, b) {
        (Ok(a), Ok(b)) if a != b => Effect::Plan,
        (a, b) if a != b => Effect::Findings,
        _ => Effect::None,
    };
    let pairs = outcomes.iter().flat_map(|a| outcomes.iter().map(move |b| (a, b)));
    pairs.map(|(a, b)| differ(a, b)).max().unwrap_or_default()
}

/// Whether the object has the leaf.
fn has(value: &Value, path: &[Step]) -> bool {
    let Some((step, rest)) = path.split_first() else { return !value.is_null() };
    let next = match step {
        Step::Field(name) => value.get(name),
        Step::Item => value.get(0),
        Step::Entry(key) => value.get(key),
    };
    next.is_some_and(|next| has(next, rest))
}

fn below<'a>(schema: &'a JSONSchemaProps, step: &Step) -> &'a JSONSchemaProps {
    let next = match step {
        Step::Field(name) => schema.properties.as_ref().and_then(|fields| fields.get(name)),
        Step::Item => item(schema),
        Step::Entry(_) => entry(schema),
    };
    next.expect("the path is of this schema")
}

/// Sets the leaf, or removes it if that leaves a valid type. Missing objects on the way get their
/// required fields.
fn set(value: &mut Value, schema: &JSONSchemaProps, path: &[Step], leaf: Option<&Value>) {
    let Some((step, rest)) = path.split_first() else {
        *value = leaf.cloned().unwrap_or_else(|| minimal(schema));
        return;
    };
    if value.is_null() {
        *value = minimal(schema);
    }
    let next = below(schema, step);
    match step {
        Step::Field(name) => {
            let required = schema.required.as_ref().is_some_and(|names| names.contains(name));
            let fields = value.as_object_mut().expect("the schema has an object here");
            if rest.is_empty() && leaf.is_none() && !required {
                fields.remove(name);
            } else {
                set(fields.entry(name).or_insert(Value::Null), next, rest, leaf);
            }
        }
        Step::Entry(key) => {
            let fields = value.as_object_mut().expect("the schema has a map here");
            if rest.is_empty() && leaf.is_none() {
                fields.remove(*key);
            } else {
                set(fields.entry(*key).or_insert(Value::Null), next, rest, leaf);
            }
        }
        Step::Item => {
            let items = value.as_array_mut().expect("the schema has a list here");
            if items.is_empty() {
                items.push(minimal(next));
            }
            set(&mut items[0], next, rest, leaf);
        }
    }
}

/// A value with the required fields only.
fn minimal(schema: &JSONSchemaProps) -> Value {
    match schema.type_.as_deref() {
        Some("object") => {
            let required = schema.required.iter().flatten();
            let field =
                |name: &String| (name.clone(), minimal(below(schema, &Step::Field(name.clone()))));
            Value::Object(required.map(field).collect::<Map<_, _>>())
        }
        Some("array") => json!([]),
        _ => candidates(schema).into_iter().next().unwrap_or_default(),
    }
}

/// Values of a leaf, of which some are valid.
fn candidates(schema: &JSONSchemaProps) -> Vec<Value> {
    if let Some(values) = &schema.enum_ {
        return values.iter().map(|value| value.0.clone()).collect();
    }
    match schema.type_.as_deref() {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => [1, 2, 7, 100, 8082, 9443].map(|number| json!(number)).to_vec(),
        Some("string") => {
            TEXTS.iter().map(|text| json!(text)).chain([json!("ab".repeat(32))]).collect()
        }
        None if schema.x_kubernetes_int_or_string == Some(true) => vec![json!(1), json!("20%")],
        other => panic!("unknown type of a leaf: {other:?}"),
    }
}

/// One or two valid texts for each format that a field of the CRDs has.
const TEXTS: [&str; 31] = [
    "one",
    "two",
    "edge0",
    "One-2",
    "ONE",
    "0.2",
    "0.7",
    "2.5",
    "3",
    "10s",
    "2h",
    "500m",
    "256Mi",
    "/one",
    "/two/file",
    "file:///one",
    "https://one.example/v1",
    "https://two.example:8001",
    "https://one.example/one.tar.gz",
    "s3://bucket/one",
    "x-one: two",
    "192.0.2.1:8418",
    "tensorflow",
    "pytorch",
    "python",
    "triton",
    "openvino",
    "llamacpp",
    "CHOWN",
    "NET_BIND_SERVICE",
    "repository.example/one:1",
];
