//! The rows of the nodes of an object: a line per node, or all that is known about one. Those of a
//! service with slices are read, printed and forgotten page by page. `row.rs` and `sources.rs` decide
//! what a row has, `layout.rs` is the layout.

mod layout;
mod row;
mod sources;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    io::Write as _,
};

use kube::{Api, Client, Resource as _, ResourceExt as _, api::ListParams};
use neptune_api::{InferenceModel, JointInferenceService, Model, NodeReportSlice};
use neptune_cloud_kinds::fleet::rows::owner_label;

use self::{
    layout::{Columns, Lines, details},
    sources::{listed_only, of_model, refused},
};
pub use self::{
    row::NodeRow,
    sources::{of_servers, of_slice, of_status},
};
use super::get;
use crate::{
    cli::{NodeFilter, ObjectArgument, Output},
    error::Error,
};

/// Slices of a page. One has at most 64 KiB.
const PAGE: u32 = 50;

/// The nodes to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All, or those in a state.
    InState(NodeFilter),
    /// One node, with all that is known.
    Named(String),
}

impl Wanted {
    /// What the flags ask for; `None` for the page.
    pub fn new(nodes: Option<NodeFilter>, node: Option<String>) -> Option<Self> {
        node.map(Self::Named).or(nodes.map(Self::InState))
    }
}

/// Prints the rows of an object.
///
/// # Errors
/// No answer from the API server, no such object, no such node, or a kind without this state.
pub async fn print(
    client: &Client,
    (namespace, object): (&str, &ObjectArgument),
    wanted: Wanted,
    output: Output,
) -> Result<(), Error> {
    if let Some(why) = refused(object, &wanted) {
        return Err(Error::Nodes(why));
    }
    match object {
        ObjectArgument::Service(name) => {
            let service: JointInferenceService = get(client, namespace, name).await?;
            let counts = service.status.as_ref().and_then(|status| status.node_counts.as_ref());
            let id = ObjectId {
                kind: "JointInferenceService",
                namespace,
                name,
                nodes: counts.and_then(|counts| usize::try_from(counts.desired).ok()),
            };
            let mut printer = Printer::new(id, Columns::Counters, wanted, output);
            if service.status.as_ref().is_some_and(|status| status.slices.is_some()) {
                read_slices(client, &service, &mut printer).await?;
            } else {
                printer.add(of_status(&service));
            }
            printer.end(None)
        }
        ObjectArgument::InferenceModel(name) => {
            let model: InferenceModel = get(client, namespace, name).await?;
            let counts = model.status.as_ref().and_then(|status| status.node_counts.as_ref());
            let nodes = counts.and_then(|counts| usize::try_from(counts.desired).ok());
            let id = ObjectId { kind: "InferenceModel", namespace, name, nodes };
            let mut printer = Printer::new(id, Columns::Versions, wanted, output);
            printer.add_all(of_servers(&model))
        }
        ObjectArgument::Model(name) => {
            let model: Model = get(client, namespace, name).await?;
            let nodes = model.status.as_ref().and_then(|status| status.wanted_on);
            let nodes = nodes.and_then(|nodes| usize::try_from(nodes).ok());
            let id = ObjectId { kind: "Model", namespace, name, nodes };
            let mut printer = Printer::new(id, Columns::Versions, wanted, output);
            printer.add_all(of_model(&model))
        }
        ObjectArgument::TrainingModel(_) | ObjectArgument::Dataset(_) => {
            unreachable!("such objects are refused")
        }
    }
}

/// Reads the slices of a service until the printer needs no more.
async fn read_slices(
    client: &Client,
    service: &JointInferenceService,
    printer: &mut Printer<'_>,
) -> Result<(), Error> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let uid = service.uid().unwrap_or_default();
    let selector = format!("{}={}", NodeReportSlice::OWNER_LABEL, owner_label(&name));
    let api = Api::<NodeReportSlice>::namespaced(client.clone(), &namespace);
    let listed = service.status.iter().flat_map(|status| &status.edge_workers);
    let listed: HashMap<&str, _> = listed.map(|row| (row.node.as_str(), row)).collect();
    let mut params = ListParams::default().labels(&selector).limit(PAGE);
    loop {
        let step = format!("list {} of {namespace}/{name}", NodeReportSlice::plural(&()));
        let page = api.list(&params).await.map_err(Error::api(step))?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        for slice in page.items {
            let is_own = slice.owner_references().iter().any(|owner| owner.uid == uid);
            if is_own && !printer.add(of_slice(&slice, &listed)) {
                return Ok(());
            }
        }
        let Some(next) = next else { return Ok(()) };
        params = params.continue_token(&next);
    }
}

/// The object whose nodes are printed.
#[derive(Debug, Clone, Copy)]
pub struct ObjectId<'a> {
    pub kind: &'static str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The number of nodes that should have it, if that is known.
    pub nodes: Option<usize>,
}

/// Prints rows while they are read.
struct Printer<'a> {
    id: ObjectId<'a>,
    wanted: Wanted,
    lines: Lines,
    output: Output,
    /// Nodes that were read. Another slice may have them for a short time, too.
    known: HashSet<String>,
    printed: usize,
}

impl<'a> Printer<'a> {
    fn new(id: ObjectId<'a>, columns: Columns, wanted: Wanted, output: Output) -> Self {
        let lines = Lines::new(id, columns, output);
        Self { id, wanted, lines, output, known: HashSet::new(), printed: 0 }
    }

    /// Prints those of the rows that are wanted. Returns whether it needs more.
    fn add(&mut self, mut rows: Vec<NodeRow>) -> bool {
        rows.retain(|row| self.known.insert(row.node.clone()));
        match &self.wanted {
            Wanted::InState(state) => {
                rows.retain(|row| row.is_in(*state));
                self.printed += rows.len();
                write(&self.lines.page(&rows))
            }
            Wanted::Named(node) => {
                let Some(row) = rows.iter().find(|row| row.node == *node) else { return true };
                self.printed += 1;
                write(&details(self.id, row, self.output));
                false
            }
        }
    }

    /// Prints the rows of a status, which has no more.
    fn add_all(&mut self, rows: Vec<NodeRow>) -> Result<(), Error> {
        let listed = rows.len();
        self.add(rows);
        self.end(listed_only(self.id, listed))
    }

    /// Prints the end, and what is not in it.
    fn end(&mut self, remark: Option<String>) -> Result<(), Error> {
        match &self.wanted {
            Wanted::InState(_) => {
                write(&self.lines.end());
            }
            Wanted::Named(node) if self.printed == 0 => {
                return Err(Error::Nodes(layout::missing(self.id, node, remark.as_deref())));
            }
            Wanted::Named(_) => return Ok(()),
        }
        let nothing = || (self.printed == 0).then(|| "no such nodes".to_owned());
        if let Some(remark) = remark.or_else(nothing) {
            let ObjectId { kind, namespace, name, .. } = self.id;
            let _ = writeln!(std::io::stderr(), "{kind} {namespace}/{name}: {remark}");
        }
        Ok(())
    }
}

/// Writes a text. Returns whether somebody reads it: a closed pipe (`| head`) is not an error.
fn write(text: &str) -> bool {
    std::io::stdout().write_all(text.as_bytes()).is_ok()
}
