//! The rules of definitions (`x-kubernetes-validations`): read from a schema, compiled, and held against objects. Pure.
//!
//! `definition` says whether an API server would take a definition's rules, `object` whether an object keeps them. The language is the
//! `cel` crate's, with the functions of Kubernetes from `kube-cel`, which follows the API server's versions of them. Neither checks types
//! or estimates costs, which an API server does before it takes a rule: `shape` and `estimate` do. A rule that uses what they do not
//! know is refused with its name when the definition is written, and never passes unevaluated.

pub mod definition;
mod estimate;
mod functions;
pub mod object;
mod shape;
mod value;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use kube_cel::KubeCelExt;
use kube_cel::cel::{Context, Program, Value as CelValue};
use serde_json::Value;

use crate::schema::Schema;

/// One rule, as a schema has it.
#[derive(Debug, Clone, Copy)]
struct Rule<'a>(&'a Value);

impl<'a> Rule<'a> {
    fn all(schema: Schema<'a>) -> impl Iterator<Item = Rule<'a>> {
        schema.list("x-kubernetes-validations").iter().map(Rule)
    }

    fn text(self, field: &str) -> &'a str {
        self.0[field].as_str().unwrap_or_default().trim()
    }

    /// How findings name the rule.
    fn shown(self) -> &'a str {
        if self.text("message").is_empty() { self.text("rule") } else { self.text("message") }
    }

    /// Whether it compares with what was.
    fn is_transition(self) -> bool {
        compile(self.text("rule")).is_ok_and(|program| program.references().has_variable("oldSelf"))
    }
}

/// A program, or what is wrong with its text. Reading a text is slow, and the same few are read for every object: they are kept.
fn compile(text: &str) -> Result<Arc<Program>, String> {
    static KEPT: LazyLock<Mutex<HashMap<String, Arc<Program>>>> = LazyLock::new(Mutex::default);
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = kept().get(text) {
        return Ok(Arc::clone(program));
    }
    let program = Arc::new(
        Program::compile(text).map_err(|errors| errors.to_string().replace("\n|", "\n |"))?,
    );
    kept().insert(text.to_owned(), Arc::clone(&program));
    Ok(program)
}

/// What an expression says of a value, and of what it was before.
fn execute(text: &str, this: &CelValue, old: Option<&CelValue>) -> Result<CelValue, String> {
    let program = compile(text)?;
    let mut context = Context::default().with_all();
    context.add_variable_from_value("self", this.clone());
    if let Some(old) = old {
        context.add_variable_from_value("oldSelf", old.clone());
    }
    program.execute(&context).map_err(|error| error.to_string())
}
