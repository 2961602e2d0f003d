//! What an expression yields, and the most that it can cost: the check and the estimate that an API server makes of a rule. Pure.
//!
//! The costs are those of cel-go's estimator: a step for each name and field, a tenth of a step for each byte that is read, and a loop
//! costs its body as often as the list can have elements. Where its versions differ, the dearer one counts. What a rule puts together
//! itself (a filtered list, a number as a text) has no known size, so that reading it is too dear in any rule.

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr,
};

use super::functions;
use super::shape::{Kind, Shape, UNKNOWN};

/// What an expression yields and costs at most.
#[derive(Debug, Clone)]
pub struct Estimate {
    pub shape: Shape,
    pub cost: u64,
}

/// What the names in an expression mean.
#[derive(Debug, Clone)]
pub struct Scope {
    variables: Vec<(String, Shape)>,
}

impl Scope {
    /// Of a rule on such a value.
    pub fn of(this: &Shape) -> Self {
        let named = |name: &str| (name.to_owned(), this.clone());
        Self { variables: vec![named("self"), named("oldSelf")] }
    }

    fn with(&self, name: &str, shape: Shape) -> Self {
        let mut inner = self.clone();
        inner.variables.push((name.to_owned(), shape));
        inner
    }

    fn find(&self, name: &str) -> Option<&Shape> {
        self.variables.iter().rev().find(|(known, _)| known == name).map(|(_, shape)| shape)
    }
}

/// Estimates an expression.
///
/// # Errors
/// Why an API server, or this one, cannot evaluate it.
pub fn estimate(expression: &IdedExpr, scope: &Scope) -> Result<Estimate, String> {
    match &expression.expr {
        Expr::Literal(literal) => Ok(Estimate { shape: of_literal(literal)?, cost: 0 }),
        Expr::Ident(name) => match scope.find(name) {
            Some(shape) => Ok(Estimate { shape: shape.clone(), cost: 1 }),
            None => Err(format!("undeclared reference to '{name}' (in container '')")),
        },
        Expr::Select(select) => of_select(select, scope),
        Expr::Call(call) => of_call(call, scope),
        Expr::List(list) => {
            let elements = all(&list.elements, scope)?;
            let mut items: Option<Shape> = None;
            for element in &elements {
                items = Some(match items {
                    None => element.shape.clone(),
                    Some(before) => before.join(&element.shape).ok_or_else(|| {
                        format!(
                            "expected type '{}' but found '{}'",
                            before.kind, element.shape.kind
                        )
                    })?,
                });
            }
            let items = items.unwrap_or(Shape { kind: Kind::Any, size: 0 });
            let shape = Shape::list(items, elements.len() as u64);
            Ok(Estimate { shape, cost: sum(&elements).saturating_add(10) })
        }
        Expr::Map(map) => {
            let mut parts = Vec::new();
            for entry in &map.entries {
                let EntryExpr::MapEntry(entry) = &entry.expr else {
                    return Err(not_here("a struct"));
                };
                parts.push(estimate(&entry.key, scope)?);
                parts.push(estimate(&entry.value, scope)?);
            }
            let values = Shape { kind: Kind::Any, size: UNKNOWN };
            let shape = Shape { kind: Kind::Map(values.into()), size: map.entries.len() as u64 };
            Ok(Estimate { shape, cost: sum(&parts).saturating_add(30) })
        }
        Expr::Comprehension(loop_) => of_loop(loop_, scope),
        Expr::Struct(_) | Expr::Unspecified => Err(not_here("a struct")),
    }
}

/// A limit of this server alone.
pub fn not_here(what: &str) -> String {
    format!("devcluster does not evaluate {what}")
}

pub fn all(expressions: &[IdedExpr], scope: &Scope) -> Result<Vec<Estimate>, String> {
    expressions.iter().map(|expression| estimate(expression, scope)).collect()
}

pub fn sum(parts: &[Estimate]) -> u64 {
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.cost))
}

fn of_literal(literal: &LiteralValue) -> Result<Shape, String> {
    Ok(match literal {
        LiteralValue::Boolean(_) => Shape::scalar(Kind::Bool),
        LiteralValue::Int(_) => Shape::scalar(Kind::Int),
        LiteralValue::Double(_) => Shape::scalar(Kind::Double),
        LiteralValue::Null => Shape::scalar(Kind::Null),
        LiteralValue::String(text) => Shape::string(text.inner().chars().count() as u64),
        LiteralValue::Bytes(_) => return Err(not_here("bytes")),
        LiteralValue::UInt(_) => return Err(not_here("unsigned numbers")),
    })
}

fn of_select(select: &SelectExpr, scope: &Scope) -> Result<Estimate, String> {
    let operand = estimate(&select.operand, scope)?;
    let name = &select.field;
    let shape = match &operand.shape.kind {
        Kind::Object(fields) => {
            let found = fields.get(name);
            found.cloned().ok_or_else(|| format!("undefined field '{name}'"))?
        }
        Kind::Map(values) => (**values).clone(),
        Kind::Any => Shape { kind: Kind::Any, size: UNKNOWN },
        other => return Err(format!("type '{other}' does not support field selection")),
    };
    let cost = operand.cost.saturating_add(1);
    if select.test {
        return Ok(Estimate { shape: Shape::scalar(Kind::Bool), cost });
    }
    if let Kind::Unread(format) = shape.kind {
        return Err(not_here(&format!("fields that are a {format}, as '{name}' is")));
    }
    Ok(Estimate { shape, cost })
}

fn of_call(call: &CallExpr, scope: &Scope) -> Result<Estimate, String> {
    let target = call.target.as_deref().map(|target| estimate(target, scope)).transpose()?;
    let arguments = all(&call.args, scope)?;
    check_pattern(call)?;
    let before = sum(&arguments).saturating_add(target.as_ref().map_or(0, |target| target.cost));
    let shapes: Vec<&Shape> = arguments.iter().map(|argument| &argument.shape).collect();
    let name = call.func_name.as_str();
    // Of two branches one is taken, and of their costs the higher counts.
    if let ("_?_:_", [condition, one, two]) = (name, arguments.as_slice()) {
        let shape = one.shape.join(&two.shape).filter(|_| condition.shape.kind == Kind::Bool);
        let shape = shape.ok_or_else(|| no_overload(name, None, &shapes))?;
        let cost = condition.cost.saturating_add(one.cost.max(two.cost));
        return Ok(Estimate { shape, cost });
    }
    let target = target.as_ref().map(|target| &target.shape);
    let (shape, own) = functions::call(name, target, &shapes)?;
    Ok(Estimate { shape, cost: before.saturating_add(own) })
}

/// A pattern that is written out has to be one.
fn check_pattern(call: &CallExpr) -> Result<(), String> {
    if !matches!(call.func_name.as_str(), "matches" | "find" | "findAll") {
        return Ok(());
    }
    let Some(Expr::Literal(LiteralValue::String(pattern))) = call.args.first().map(|arg| &arg.expr)
    else {
        return Ok(());
    };
    match regex::Regex::new(pattern.inner()) {
        Ok(_) => Ok(()),
        Err(fault) => Err(format!("program instantiation failed: error parsing regexp: {fault}")),
    }
}

pub fn no_overload(name: &str, target: Option<&Shape>, arguments: &[&Shape]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|shape| shape.kind.to_string()).collect();
    let target = target.map(|target| format!("{}.", target.kind)).unwrap_or_default();
    format!(
        "found no matching overload for '{name}' applied to '{target}({})'",
        arguments.join(", ")
    )
}

/// The loops that `all`, `exists`, `exists_one`, `map` and `filter` are.
fn of_loop(loop_: &ComprehensionExpr, scope: &Scope) -> Result<Estimate, String> {
    let range = estimate(&loop_.iter_range, scope)?;
    let element = match &range.shape.kind {
        Kind::List(items) => (**items).clone(),
        Kind::Map(_) => Shape::string(UNKNOWN),
        Kind::Any => Shape { kind: Kind::Any, size: UNKNOWN },
        other => {
            return Err(format!(
                "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
            ));
        }
    };
    if let Kind::Unread(format) = element.kind {
        return Err(not_here(&format!("lists of {format}")));
    }
    let start = estimate(&loop_.accu_init, scope)?;
    let first =
        scope.with(&loop_.accu_var, start.shape.clone()).with(&loop_.iter_var, element.clone());
    let step = estimate(&loop_.loop_step, &first)?;
    let gathered = match &step.shape.kind {
        Kind::List(items) => Shape::list(items.of_unknown_size(), range.shape.size),
        kind => Shape::scalar(kind.clone()),
    };
    let inner = scope.with(&loop_.accu_var, gathered.clone());
    let condition = estimate(&loop_.loop_cond, &inner.with(&loop_.iter_var, element))?;
    let result = estimate(&loop_.result, &inner)?;
    let turns = range.shape.size.saturating_mul(condition.cost.saturating_add(step.cost));
    let cost =
        [range.cost, start.cost, turns, result.cost].into_iter().fold(0, u64::saturating_add);
    Ok(Estimate { shape: result.shape, cost })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{compile, shape};
    use super::*;
    use crate::schema::Schema;

    fn of(rule: &str) -> Result<Estimate, String> {
        let schema = json!({"type": "object", "properties": {
            "n": {"type": "integer"}, "word": {"type": "string", "maxLength": 10}, "text": {"type": "string"},
            "when": {"type": "string", "format": "date-time"}, "either": {"x-kubernetes-int-or-string": true},
            "list": {"type": "array", "maxItems": 5, "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        let (this, _) = shape::of(Schema::new(&schema).expect("an object")).expect("a shape");
        let program = compile(rule)?;
        estimate(program.expression(), &Scope::of(&this))
    }

    #[test]
    fn costs_are_those_of_the_api_servers_estimate() {
        for (rule, cost) in [
            ("self.n > 0", 3),
            ("has(self.n) && self.n > 0", 5),
            // 40 bytes against 1, a tenth of each, rounded up.
            ("self.word == 'a'", 3),
            ("self.word.startsWith('ab')", 3),
            // (40 + 1) / 10 rounded up, times a quarter of the pattern's 6 characters, rounded up.
            ("self.word.matches('^[a-z]')", 2 + 5 * 2),
            // Five times: the condition of the loop 2, the step 1 for what is gathered, 2 to read the name, 2 to compare 20 bytes.
            ("self.list.all(x, x.name == self.word)", 2 + 5 * (2 + 1 + 2 + 2 + 2) + 1),
            ("size(self.list) > 0", 4),
            ("self.word + 'a' != ''", 2 + 5),
            ("self.n in [1, 2]", 2 + 10 + 2),
        ] {
            assert_eq!(of(rule).map(|estimate| estimate.cost), Ok(cost), "{rule}");
        }
    }

    #[test]
    fn what_has_no_bound_is_too_dear() {
        for rule in [
            "self.list.filter(x, x.name != '')[0].name.contains('a')",
            "self.list.map(x, x.name).join(',') != ''",
            "('n' + string(self.n)).contains(self.text)",
        ] {
            assert!(
                of(rule).is_ok_and(|estimate| estimate.cost > 10_000_000),
                "{rule}: {:?}",
                of(rule)
            );
        }
    }

    #[test]
    fn what_cannot_be_is_told_by_name() {
        for (rule, words) in [
            ("self.m > 0", "undefined field 'm'"),
            ("has(self.m)", "undefined field 'm'"),
            ("self.list.all(x, x.nam == '')", "undefined field 'nam'"),
            ("other.n > 0", "undeclared reference to 'other' (in container '')"),
            ("self.n == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
            (
                "self.n.startsWith('a')",
                "found no matching overload for 'startsWith' applied to 'int.(string)'",
            ),
            ("self.word.matches('[')", "error parsing regexp"),
            (
                "self.word.all(x, true)",
                "expression of type 'string' cannot be range of a comprehension",
            ),
            (
                "self.when == self.when",
                "devcluster does not evaluate fields that are a timestamp, as 'when' is",
            ),
            (
                "quantity(self.word).isGreaterThan(quantity('1'))",
                "devcluster does not evaluate the function 'quantity'",
            ),
            ("self.n > ", "ERROR: <input>:1:"),
            ("[1, 'a'].size() > 0", "expected type 'int' but found 'string'"),
        ] {
            let fault = of(rule).expect_err(rule);
            assert!(fault.contains(words), "{rule}: {fault}");
        }
    }

    #[test]
    fn types_follow_from_the_schema() {
        for (rule, kind) in [
            ("self.list.map(x, x.name)", "list(string)"),
            ("self.list.filter(x, x.name != '')", "list(object)"),
            ("self.labels['a']", "string"),
            ("self.list.exists_one(x, x.name == 'a')", "bool"),
            ("self.n > 0 ? self.word : 'none'", "string"),
            ("self.either", "dyn"),
            ("self.word.split('/')", "list(string)"),
        ] {
            assert_eq!(
                of(rule).map(|estimate| estimate.shape.kind.to_string()),
                Ok(kind.to_owned()),
                "{rule}"
            );
        }
    }
}
