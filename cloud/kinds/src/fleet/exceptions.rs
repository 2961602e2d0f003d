//! Which nodes a status lists: all of a few, and of many only those that need attention. Pure.

/// The maximum number of nodes that a status lists.
pub const MAX_LISTED_NODES: usize = 32;

/// The order of a node among those that need attention; the first ones are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attention {
    /// Something failed on the node.
    Failed,
    /// The node is not ready yet.
    Pending,
    /// The node works, with a problem or an earlier version.
    Degraded,
    /// The node is offline, or its state is not known.
    Unknown,
}

/// The rows that a status lists, in their order: all, or of many the first that need attention.
/// Between equal ones those stay that the previous status lists.
pub fn listed<T>(
    mut rows: Vec<T>,
    attention: impl Fn(&T) -> Option<Attention>,
    was_listed: impl Fn(&T) -> bool,
) -> Vec<T> {
    if rows.len() <= MAX_LISTED_NODES {
        return rows;
    }
    let ranked = rows.iter().enumerate();
    let rank = |(at, row): (usize, &T)| Some((attention(row)?, !was_listed(row), at));
    let mut ranked: Vec<_> = ranked.filter_map(rank).collect();
    ranked.sort_unstable();
    ranked.truncate(MAX_LISTED_NODES);
    let mut places: Vec<_> = ranked.into_iter().map(|(_, _, at)| at).collect();
    places.sort_unstable();
    let mut places = places.into_iter().peekable();
    let mut at = 0;
    rows.retain(|_| {
        let is_listed = places.next_if_eq(&at).is_some();
        at += 1;
        is_listed
    });
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(rows: Vec<(usize, Option<Attention>)>, listed_before: &[usize]) -> Vec<usize> {
        let rows = listed(rows, |row| row.1, |row| listed_before.contains(&row.0));
        rows.into_iter().map(|row| row.0).collect()
    }

    #[test]
    fn few_nodes_are_all_listed() {
        let rows: Vec<_> = (0..MAX_LISTED_NODES).map(|at| (at, None)).collect();
        assert_eq!(numbers(rows, &[]), (0..MAX_LISTED_NODES).collect::<Vec<_>>());
    }

    #[test]
    fn of_many_nodes_those_with_the_most_attention_are_listed_in_their_order() {
        let attention = |at: usize| match at {
            90..95 => Some(Attention::Failed),
            10..12 => Some(Attention::Unknown),
            _ => None,
        };
        let rows = |attention: &dyn Fn(usize) -> Option<Attention>| -> Vec<_> {
            (0..100).map(|at| (at, attention(at))).collect()
        };
        assert_eq!(numbers(rows(&attention), &[]), [10, 11, 90, 91, 92, 93, 94]);
        assert_eq!(numbers(rows(&|_| None), &[3]), [0; 0], "nothing needs attention");
        let first: Vec<_> = (0..MAX_LISTED_NODES - 1).chain([99]).collect();
        let failed_last = |at| Some(if at == 99 { Attention::Failed } else { Attention::Pending });
        assert_eq!(numbers(rows(&failed_last), &[]), first);
        let kept = numbers(rows(&|_| Some(Attention::Pending)), &[50, 60]);
        assert_eq!((kept.len(), &kept[30..]), (32, &[50, 60][..]), "they were listed before");
    }
}
