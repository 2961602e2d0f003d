//! How many nodes of an object may be not ready while the object is.

/// The part of the reachable nodes that may be not ready, in percent.
const MAX_UNAVAILABLE_PERCENT: usize = 10;

/// The number of nodes that may be not ready, of this many that are reachable: a tenth, rounded down.
pub fn tolerated(reachable: usize) -> usize {
    reachable * MAX_UNAVAILABLE_PERCENT / 100
}

/// The nodes that are not ready, as a part of a sentence, from the number of nodes that are offline
/// and descriptions of others. Empty if there are none.
pub fn problems(offline: usize, others: impl IntoIterator<Item = Option<String>>) -> String {
    let verb = if offline == 1 { "node is" } else { "nodes are" };
    let offline = (offline > 0).then(|| format!("{offline} {verb} offline"));
    let parts: Vec<_> = std::iter::once(offline).chain(others).flatten().collect();
    parts.join(", ")
}
