//! Decides from its answers whether the edge's model server has a problem, and whether its requests
//! are decided. Pure.

use std::time::Instant;

use super::{Decisions, RefusedCall};

impl Decisions {
    /// Records that the edge's model server refused a call.
    pub fn refused_by_edge(&mut self, refusal: RefusedCall, now: Instant) {
        self.edge_refusals.failed(refusal, now);
    }

    /// Records that the edge's model server answered a call.
    pub fn accepted_by_edge(&mut self, now: Instant) {
        self.edge_refusals.succeeded(now);
    }

    /// The last refusal of the edge's model server, if it refused the last calls.
    pub const fn edge_refusal(&self) -> Option<&RefusedCall> {
        self.edge_refusals.problem()
    }

    /// A request passes to the edge without a decision, for this reason.
    pub fn passed(&mut self, why: String, now: Instant) {
        self.undecided.failed(why, now);
    }

    /// A request is decided.
    pub fn is_decided(&mut self, now: Instant) {
        self.undecided.succeeded(now);
    }

    /// Why the last requests were not decided, if that is a problem.
    pub fn undecided(&self) -> Option<&str> {
        self.undecided.problem().map(String::as_str)
    }

    /// The edge's model server at this address did not answer a request.
    pub fn edge_failed(&mut self, address: &str) {
        if self.edge_down.as_deref() != Some(address) {
            self.edge_down = Some(address.to_owned());
        }
    }

    /// The address of the edge's model server, if it did not answer the last request.
    pub fn edge_down(&self) -> Option<&str> {
        self.edge_down.as_deref()
    }

    /// The edge's model server can be reached again.
    pub fn edge_is_back(&mut self) {
        self.edge_down = None;
    }
}
