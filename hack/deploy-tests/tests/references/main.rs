//! The reference pages that are generated: the command lines, from the `--help` of the built
//! programs, and the fields of the resources, from the CRDs. `UPDATE_DOCS=1` writes them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod api;
mod cli;

use neptune_harness::generated::check;

#[test]
fn page_of_command_lines_is_that_of_the_programs() {
    check("docs/cli.md", &cli::page());
}

#[test]
fn page_of_fields_is_that_of_the_crds() {
    check("docs/api.md", &api::page());
}
