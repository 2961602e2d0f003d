//! Whether the rules in the schema of a definition are ones that an API server takes: their texts, their types and their cost. Pure.

use serde_json::Value;

use super::estimate::{Scope, estimate};
use super::shape::{self, Kind, Shape};
use super::{Rule, compile};
use crate::field::{Fault, FieldError, index, join};
use crate::schema::{ListKind, Schema};

/// The most that one expression may cost, as often as its place can occur in an object.
const EXPRESSION_LIMIT: u64 = 10_000_000;
/// The most that all expressions of a schema may cost together.
const SCHEMA_LIMIT: u64 = 100_000_000;

const REASONS: &[&str] =
    &["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Where in a schema the check is.
#[derive(Clone)]
struct Place {
    path: String,
    /// How often it can occur in an object; `None` when nothing bounds that.
    times: Option<u64>,
    /// The list from which on nothing can be compared with what it was.
    uncorrelated: Option<String>,
    is_root: bool,
}

impl Place {
    fn below(&self, path: String) -> Self {
        Self { path, is_root: false, ..self.clone() }
    }

    fn many(&self, path: String, limit: Option<usize>) -> Self {
        let limit = limit.and_then(|limit| u64::try_from(limit).ok());
        let times = self.times.zip(limit).map(|(times, limit)| times.saturating_mul(limit));
        Self { times, ..self.below(path) }
    }
}

/// All findings on the rules of a version's schema.
pub fn check(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(root) = Schema::new(schema) else { return };
    let place = Place { path: path.to_owned(), times: Some(1), uncorrelated: None, is_root: true };
    let mut dear = Vec::new();
    let total = check_node(root, &place, &mut dear, errors);
    if total > SCHEMA_LIMIT {
        dear.sort_by_key(|(_, cost)| std::cmp::Reverse(*cost));
        for (path, _) in dear.iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(path, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(FieldError::forbidden(path, &too_dear(what, total, SCHEMA_LIMIT)));
    }
}

/// Rules that cost a part of the limit worth naming, with their cost.
type Dear = Vec<(String, u64)>;

/// The cost of the rules of a node and of what is below it.
fn check_node(
    schema: Schema<'_>,
    place: &Place,
    dear: &mut Dear,
    errors: &mut Vec<FieldError>,
) -> u64 {
    let mut total = check_rules(schema, place, dear, errors);
    let mut visit = |child: Schema<'_>, place: &Place| {
        total = total.saturating_add(check_node(child, place, dear, errors));
    };
    for (name, property) in schema.properties() {
        visit(property, &place.below(format!("{}.properties[{name}]", place.path)));
    }
    if let Some(items) = schema.items() {
        let mut inner = place.many(join(&place.path, "items"), schema.count("maxItems"));
        if !matches!(schema.list_kind(), ListKind::Map(_)) && inner.uncorrelated.is_none() {
            inner.uncorrelated = Some(place.path.clone());
        }
        visit(items, &inner);
    }
    if let Some(values) = schema.additional() {
        let path = join(&place.path, "additionalProperties");
        visit(values, &place.many(path, schema.count("maxProperties")));
    }
    total
}

fn check_rules(
    schema: Schema<'_>,
    place: &Place,
    dear: &mut Dear,
    errors: &mut Vec<FieldError>,
) -> u64 {
    if schema.list("x-kubernetes-validations").is_empty() {
        return 0;
    }
    let found = if place.is_root { Some((shape::of_root(schema), 2)) } else { shape::of(schema) };
    let at = join(&place.path, "x-kubernetes-validations");
    let Some((this, least)) = found else {
        errors.push(FieldError::forbidden(&at, "the schema is one that rules cannot read"));
        return 0;
    };
    let times = place.times.unwrap_or_else(|| shape::most_in_a_request(least));
    let mut total: u64 = 0;
    for (position, rule) in Rule::all(schema).enumerate() {
        let at = index(&at, position);
        check_texts(rule, schema, &at, errors);
        if rule.text("rule").is_empty() {
            continue;
        }
        let rule_at = join(&at, "rule");
        let cost = check_expression(rule, "rule", &this, &Kind::Bool, times, &at, errors);
        if cost >= SCHEMA_LIMIT / 100 {
            dear.push((rule_at.clone(), cost));
        }
        total = total.saturating_add(cost);
        if let Some(list) = place.uncorrelated.as_ref().filter(|_| rule.is_transition()) {
            let detail = format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
            );
            errors.push(FieldError::invalid(&rule_at, rule.text("rule"), detail));
        }
        if !rule.text("messageExpression").is_empty() {
            let cost =
                check_expression(rule, "messageExpression", &this, &Kind::String, 1, &at, errors);
            total = total.saturating_add(cost);
        }
    }
    total
}

/// What an expression costs at most; 0 when it is refused.
fn check_expression(
    rule: Rule<'_>,
    field: &str,
    this: &Shape,
    wanted: &Kind,
    times: u64,
    at: &str,
    errors: &mut Vec<FieldError>,
) -> u64 {
    let at = join(at, field);
    let found = compile(rule.text(field))
        .and_then(|program| estimate(program.expression(), &Scope::of(this)))
        .map_err(|fault| {
            format!(
                "{}compilation failed: {fault}",
                if field == "rule" { "" } else { "messageExpression " }
            )
        });
    let estimate = match found {
        Ok(estimate) => estimate,
        Err(fault) => {
            errors.push(refused(rule, &at, &fault));
            return 0;
        }
    };
    if estimate.shape.kind != *wanted && estimate.shape.kind != Kind::Any {
        let what = if field == "rule" { "cel expression" } else { "messageExpression" };
        let article = format!("{what} must evaluate to a {wanted}");
        errors.push(refused(rule, &at, &article));
        return 0;
    }
    let cost = estimate.cost.saturating_mul(times);
    if cost > EXPRESSION_LIMIT {
        let what = format!("estimated {field} cost");
        errors.push(FieldError::forbidden(&at, &too_dear(&what, cost, EXPRESSION_LIMIT)));
    }
    cost
}

/// The API server shows the rule as its own type has it.
fn refused(rule: Rule<'_>, at: &str, fault: &str) -> FieldError {
    let text = |field: &str| Value::from(rule.0[field].as_str().unwrap_or_default());
    let detail = format!(
        r#"{{"Rule":{},"Message":{},"MessageExpression":{},"Reason":{},"FieldPath":{},"OptionalOldSelf":{}}}: {fault}"#,
        text("rule"),
        text("message"),
        text("messageExpression"),
        rule.0["reason"],
        text("fieldPath"),
        rule.0["optionalOldSelf"],
    );
    FieldError::new(Fault::Invalid, at, None, detail)
}

fn check_texts(rule: Rule<'_>, schema: Schema<'_>, at: &str, errors: &mut Vec<FieldError>) {
    let given = |field: &str| rule.0.get(field).and_then(Value::as_str);
    if rule.text("rule").is_empty() {
        errors.push(FieldError::required(&join(at, "rule"), "rule is not specified"));
    }
    for field in ["message", "messageExpression"] {
        if given(field).is_some_and(|text| !text.is_empty() && text.trim().is_empty()) {
            let detail = format!("{field} must be non-empty if specified");
            errors.push(FieldError::invalid(&join(at, field), given(field), detail));
        }
    }
    if rule.text("message").contains('\n') {
        let detail = "must not contain line breaks";
        errors.push(FieldError::invalid(&join(at, "message"), rule.text("message"), detail));
    }
    if rule.text("rule").contains('\n') && rule.text("message").is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(FieldError::required(&join(at, "message"), detail));
    }
    if let Some(reason) = given("reason").filter(|reason| !REASONS.contains(reason)) {
        errors.push(FieldError::unsupported(&join(at, "reason"), reason, REASONS));
    }
    if let Some(path) = given("fieldPath").filter(|path| !is_field(path, schema)) {
        let detail = "must be a valid path";
        errors.push(FieldError::invalid(&join(at, "fieldPath"), path, detail));
    }
    if rule.0["optionalOldSelf"] == true {
        let detail = super::estimate::not_here("optionalOldSelf");
        errors.push(FieldError::forbidden(&join(at, "optionalOldSelf"), &detail));
    }
}

/// Whether `.a.b` leads to a field. (The form with brackets is not read here.)
fn is_field(path: &str, schema: Schema<'_>) -> bool {
    let Some(path) = path.strip_prefix('.') else { return false };
    path.split('.').try_fold(schema, Schema::field).is_some()
}

fn too_dear(what: &str, cost: u64, limit: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // It is printed with one digit.
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(schema: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        check(schema, "s", &mut errors);
        errors.iter().map(FieldError::message).collect()
    }

    fn with_rule(rule: &Value) -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [rule],
            "properties": {"n": {"type": "integer"}, "text": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}}}})
    }

    #[test]
    fn a_rule_of_known_fields_and_bounded_cost_is_taken() {
        let rule = json!({"rule": "self.n > 0", "message": "must be above 0", "fieldPath": ".n", "reason": "FieldValueInvalid"});
        assert_eq!(faults(&with_rule(&rule)), Vec::<String>::new());
        let at_the_root = json!({"type": "object", "properties": {},
            "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('a')"}]});
        assert_eq!(faults(&at_the_root), Vec::<String>::new());
    }

    #[test]
    fn what_an_api_server_would_not_take_is_refused_with_its_place() {
        for (rule, place, words) in [
            (json!({"rule": ""}), "rule", "Required value: rule is not specified"),
            (json!({"rule": "self.n >"}), "rule", "compilation failed: ERROR: <input>:1:"),
            (json!({"rule": "self.m > 0"}), "rule", "compilation failed: undefined field 'm'"),
            (json!({"rule": "self.n"}), "rule", "cel expression must evaluate to a bool"),
            (
                json!({"rule": "self.list.all(x, x.matches('^a'))"}),
                "rule",
                "Forbidden: estimated rule cost exceeds budget by factor of",
            ),
            (
                json!({"rule": "semver(self.text) == semver('1.0.0')"}),
                "rule",
                "devcluster does not evaluate the function 'semver'",
            ),
            (json!({"rule": "true", "message": " "}), "message", "must be non-empty if specified"),
            (json!({"rule": "true", "message": "a\nb"}), "message", "must not contain line breaks"),
            (
                json!({"rule": "true ||\nfalse"}),
                "message",
                "Required value: message must be specified if rule contains line breaks",
            ),
            (
                json!({"rule": "true", "reason": "Because"}),
                "reason",
                "Unsupported value: \"Because\"",
            ),
            (json!({"rule": "true", "fieldPath": ".m"}), "fieldPath", "must be a valid path"),
            (json!({"rule": "true", "fieldPath": "n"}), "fieldPath", "must be a valid path"),
            (
                json!({"rule": "true", "messageExpression": "self.n"}),
                "messageExpression",
                "must evaluate to a string",
            ),
            (
                json!({"rule": "true", "messageExpression": "string(self.n) + 'a'"}),
                "messageExpression",
                "exceeds budget by factor of more than 100x",
            ),
            (
                json!({"rule": "true", "optionalOldSelf": true}),
                "optionalOldSelf",
                "devcluster does not evaluate",
            ),
        ] {
            let found = faults(&with_rule(&rule));
            let place = format!("s.properties[spec].x-kubernetes-validations[0].{place}: ");
            assert!(
                found.iter().any(|fault| fault.starts_with(&place) && fault.contains(words)),
                "{rule}: {found:?}"
            );
        }
    }

    #[test]
    fn what_was_can_only_be_read_where_it_can_be_found() {
        let list = |kind: &Value| {
            let mut list = json!({"type": "array", "maxItems": 2, "items": {"type": "object",
                "properties": {"k": {"type": "string", "maxLength": 9}}, "required": ["k"],
                "x-kubernetes-validations": [{"rule": "self.k == oldSelf.k"}]}});
            for (name, value) in kind.as_object().into_iter().flatten() {
                list[name] = value.clone();
            }
            json!({"type": "object", "properties": {"list": list}})
        };
        let map = json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]});
        assert_eq!(faults(&list(&map)), Vec::<String>::new());
        let found = faults(&list(&json!({})));
        assert!(found[0].contains("oldSelf cannot be used on the uncorrelatable portion of the schema within s.properties[list]"), "{found:?}");
    }

    #[test]
    fn a_rule_costs_as_often_as_its_place_can_occur() {
        let list = |limit: &Value| {
            json!({"type": "object", "properties": {"list": {"type": "array", "maxItems": limit, "items": {"type": "string",
                "maxLength": 100, "x-kubernetes-validations": [{"rule": "self.matches('^[a-z]([a-z0-9-]*[a-z0-9])?$')"}]}}}})
        };
        assert_eq!(faults(&list(&json!(1000))), Vec::<String>::new());
        assert_eq!(faults(&list(&json!(100_000))).len(), 1);
        assert_eq!(
            faults(&list(&Value::Null)).len(),
            3,
            "the sum is too much as well, and tells what is most of it"
        );
    }

    /// All rules of a definition together cost half of what one may: versions of the estimate differ.
    #[test]
    fn our_own_rules_keep_far_from_the_limits() {
        let crds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
        let mut seen = 0;
        for file in std::fs::read_dir(crds).expect("the definitions") {
            let path = file.expect("a file").path();
            let text = std::fs::read_to_string(&path).expect("a text");
            let definition: Value = serde_saphyr::from_str(&text).expect("YAML");
            for version in definition["spec"]["versions"].as_array().expect("versions") {
                let schema = &version["schema"]["openAPIV3Schema"];
                assert_eq!(faults(schema), Vec::<String>::new(), "{}", path.display());
                let root = Schema::new(schema).expect("an object");
                let place = Place {
                    path: String::new(),
                    times: Some(1),
                    uncorrelated: None,
                    is_root: true,
                };
                let total = check_node(root, &place, &mut Vec::new(), &mut Vec::new());
                assert!(total > 0 && total < EXPRESSION_LIMIT / 2, "{}: {total}", path.display());
                seen += 1;
            }
        }
        assert!(seen >= 4, "{seen}");
    }
}
