//! The layout of rows: lines with columns that are as wide as needed so far, JSON, and a page about
//! one node. Pure.

use neptune_api::{AgentCounters, CounterTotals};

use super::{ObjectId, row::NodeRow};
use crate::{
    cli::Output,
    commands::status::{
        fleet::argument,
        format::or_none,
        section::Value,
        text::{columns, plain},
    },
};

/// The columns of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Columns {
    /// Those of workers have counters.
    Counters,
    /// Those of servers and files have versions.
    Versions,
}

impl Columns {
    fn head(self) -> Vec<String> {
        let head: &[&str] = match self {
            Self::Counters => &["NODE", "STATE", "INFERENCES", "HARD EXAMPLES", "MESSAGE"],
            Self::Versions => &["NODE", "STATE", "VERSION", "MESSAGE"],
        };
        head.iter().map(ToString::to_string).collect()
    }

    fn cells(self, row: &NodeRow) -> Vec<String> {
        let number = |number: fn(&CounterTotals) -> u64| {
            row.counters.as_ref().map_or("-".to_owned(), |counters| number(counters).to_string())
        };
        let mut cells = vec![row.node.clone(), row.state_text()];
        match self {
            Self::Counters => cells.extend([
                number(|counters| counters.inference_number),
                number(|counters| counters.hard_example_number),
            ]),
            Self::Versions => cells.push(or_none(row.values.get("version").map(String::as_str))),
        }
        cells.push(or_none(row.message.as_deref()));
        cells
    }
}

/// The lines of the nodes of an object, which are printed page by page.
#[derive(Debug)]
pub struct Lines {
    start: String,
    columns: Columns,
    output: Output,
    widths: Vec<usize>,
    has_rows: bool,
}

impl Lines {
    pub fn new(id: ObjectId<'_>, columns: Columns, output: Output) -> Self {
        let ObjectId { kind, namespace, name, .. } = id;
        // The names of objects need no escapes.
        let start = format!(
            "{{\n\"kind\": \"{kind}\",\n\"namespace\": \"{namespace}\",\n\"name\": \"{name}\",\n\"nodes\": [\n"
        );
        Self { start, columns, output, widths: Vec::new(), has_rows: false }
    }

    /// The lines of these rows, after those before.
    pub fn page(&mut self, rows: &[NodeRow]) -> String {
        if rows.is_empty() {
            return String::new();
        }
        let is_first = !std::mem::replace(&mut self.has_rows, true);
        match self.output {
            Output::Text => {
                let head = is_first.then(|| self.columns.head());
                let cells = rows.iter().map(|row| self.columns.cells(row));
                let lines: Vec<_> = head.into_iter().chain(cells).collect();
                columns(&lines, &mut self.widths)
            }
            Output::Json => {
                let start = if is_first { std::mem::take(&mut self.start) } else { ",\n".into() };
                start + &rows.iter().map(json).collect::<Vec<_>>().join(",\n")
            }
        }
    }

    /// What follows the last line.
    pub fn end(&mut self) -> String {
        match self.output {
            Output::Text => String::new(),
            Output::Json if self.has_rows => "\n]\n}\n".to_owned(),
            Output::Json => std::mem::take(&mut self.start) + "]\n}\n",
        }
    }
}

fn json(row: &NodeRow) -> String {
    serde_json::to_string(row).expect("a row has only strings and numbers")
}

/// All that is known about a node.
pub fn details(id: ObjectId<'_>, row: &NodeRow, output: Output) -> String {
    if output == Output::Json {
        return json(row) + "\n";
    }
    let ObjectId { kind, namespace, name, .. } = id;
    let state = match row.state {
        Some(_) => row.state_text(),
        None => "the node no longer has it; its counters stay in the totals".to_owned(),
    };
    let mut values = vec![
        Value::new("Object", format!("{kind} {namespace}/{name}")),
        Value::new("Node", &row.node),
        Value::new("State", state),
    ];
    values.extend(Value::optional("Message", row.message.as_ref()));
    if let Some(counters) = &row.counters {
        let agent = |agent: &AgentCounters| {
            let AgentCounters { instance, epoch, seq, counters, .. } = agent;
            format!("agent {instance}: {} (epoch {epoch}, message {seq})", counters_text(counters))
        };
        let total = counters_text(counters);
        let lines = std::iter::once(total).chain(row.agents.iter().map(agent)).collect();
        values.push(Value { name: "Counters".to_owned(), lines });
    }
    values.extend(row.values.iter().map(|(name, value)| Value::new(*name, value)));
    values.extend(Value::optional("Slice", row.slice.as_ref()));
    plain(&values)
}

/// The counters that are not 0, and always those of inferences and hard examples.
fn counters_text(counters: &CounterTotals) -> String {
    let others = [
        (counters.fallback_number, "not answered by the cloud"),
        (counters.hard_number, "decided to be hard"),
        (counters.over_budget_number, "over the cap of uploads"),
        (counters.unjudged_number, "without a confidence"),
        (counters.shadow_number, "compared with the cloud"),
        (counters.deadline_number, "too late for the cloud"),
    ];
    let others = others.into_iter().filter(|(number, _)| *number > 0);
    let others: Vec<_> = others.map(|(number, what)| format!(", {number} {what}")).collect();
    let others = others.concat();
    let CounterTotals { inference_number, hard_example_number, .. } = counters;
    format!("{inference_number} inferences, {hard_example_number} hard examples{others}")
}

/// The error if the object has no such node.
pub fn missing(id: ObjectId<'_>, node: &str, remark: Option<&str>) -> String {
    let ObjectId { kind, namespace, name, nodes } = id;
    let object = argument(kind, name);
    let nodes = nodes.map(|nodes| format!(" {nodes}")).unwrap_or_default();
    let remedy = format!(
        "correct the name (kubectl neptune status {object} -n {namespace} --nodes lists them), or give the node the labels of its selector"
    );
    match remark {
        Some(remark) => format!("{kind} {namespace}/{name}: no row for node {node}: {remark}"),
        None => {
            format!(
                "{kind} {namespace}/{name}: node {node} is not one of its{nodes} nodes; {remedy}"
            )
        }
    }
}
