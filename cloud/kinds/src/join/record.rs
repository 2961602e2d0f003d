//! What of a join is recorded in the `EdgeNode`, and which certificates are revoked by the
//! `EdgeNodes`.

use std::collections::BTreeSet;

use neptune_api::{EdgeNode, EdgeNodeSpec};

use super::token_entry::TokenEntry;

/// Serial numbers that an `EdgeNode` keeps.
const MAX_SERIALS: usize = 32;

/// Whether the `EdgeNode` has the use of this token. True for a token that nobody used.
pub fn is_recorded(spec: Option<&EdgeNodeSpec>, token: &TokenEntry) -> bool {
    token
        .used_by
        .as_ref()
        .is_none_or(|used| spec.is_some_and(|spec| spec.certificate_serials.contains(&used.serial)))
}

/// The spec of the `EdgeNode` after the use of this token; `None` if it has it already.
///
/// The serial number is always added: the certificate exists. A key that a person trusted meanwhile
/// stays, and so does a revocation, unless the token replaces them.
pub fn recorded(spec: Option<&EdgeNodeSpec>, token: &TokenEntry) -> Option<EdgeNodeSpec> {
    let used = token.used_by.as_ref()?;
    if is_recorded(spec, token) {
        return None;
    }
    let mut next = spec.cloned().unwrap_or_default();
    next.certificate_serials.push(used.serial.clone());
    let surplus = next.certificate_serials.len().saturating_sub(MAX_SERIALS);
    next.certificate_serials.drain(..surplus);
    if token.replace || next.trusted_key.is_none() {
        next.trusted_key = Some(used.pin.0.clone());
    }
    next.revoked &= !token.replace;
    Some(next)
}

/// The serial numbers of all revoked certificates: of each node all but the last one, and that one
/// too if the node is revoked. Of `previous`, the numbers of the last list, all stay that are not
/// the last one of a node in use: an `EdgeNode` that was deleted does not make its certificates
/// valid.
pub fn revoked_serials<'a>(
    nodes: impl IntoIterator<Item = &'a EdgeNodeSpec>,
    previous: &BTreeSet<String>,
) -> BTreeSet<String> {
    let (mut revoked, mut current) = (BTreeSet::new(), BTreeSet::new());
    for spec in nodes {
        let Some((last, earlier)) = spec.certificate_serials.split_last() else { continue };
        revoked.extend(earlier.iter().cloned());
        let target = if spec.revoked { &mut revoked } else { &mut current };
        target.insert(last.clone());
    }
    revoked.extend(previous.difference(&current).cloned());
    revoked
}

/// The specs of `EdgeNodes`.
pub fn specs<'a>(
    nodes: impl IntoIterator<Item = &'a EdgeNode>,
) -> impl Iterator<Item = &'a EdgeNodeSpec> {
    nodes.into_iter().map(|node| &node.spec)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;
    use neptune_wire::fixtures::pin;
    use proptest::prelude::*;

    use super::{super::token_entry::TokenUse, *};

    fn used(key: u8, serial: &str, replace: bool) -> TokenEntry {
        let secret = format!("{}a", "b".repeat(25)).parse().unwrap();
        let time = Timestamp::UNIX_EPOCH;
        let used_by = Some(TokenUse { pin: pin(key), serial: serial.to_owned(), time });
        let token = TokenEntry::new("edge0".parse().unwrap(), &secret, time, replace);
        TokenEntry { used_by, ..token }
    }

    fn spec(key: Option<u8>, serials: &[&str], revoked: bool) -> EdgeNodeSpec {
        let certificate_serials = serials.iter().map(|serial| (*serial).to_owned()).collect();
        let trusted_key = key.map(|key| pin(key).0);
        EdgeNodeSpec { trusted_key, certificate_serials, revoked, ..EdgeNodeSpec::default() }
    }

    #[test]
    fn join_trusts_the_key_and_adds_the_serial_once() {
        let token = used(1, "a", false);
        let first = recorded(None, &token).unwrap();
        assert_eq!(first, spec(Some(1), &["a"], false));
        assert_eq!(recorded(Some(&first), &token), None);
        assert!(is_recorded(Some(&first), &token) && !is_recorded(None, &token));
        let unused = TokenEntry { used_by: None, ..token };
        assert_eq!(recorded(None, &unused), None);
    }

    #[test]
    fn decision_of_a_person_stays_unless_the_token_replaces_it() {
        let before = spec(Some(2), &["a"], true);
        let kept = recorded(Some(&before), &used(1, "b", false)).unwrap();
        assert_eq!(kept, spec(Some(2), &["a", "b"], true));
        let replaced = recorded(Some(&before), &used(1, "b", true)).unwrap();
        assert_eq!(replaced, spec(Some(1), &["a", "b"], false));
    }

    #[test]
    fn revoked_node_has_no_valid_certificate_and_others_their_last() {
        let nodes =
            [spec(None, &["a", "b"], false), spec(None, &["c", "d"], true), spec(None, &[], true)];
        let previous = ["b", "x"].map(str::to_owned).into();
        let revoked = revoked_serials(&nodes, &previous);
        assert_eq!(revoked, ["a", "c", "d", "x"].map(str::to_owned).into());
    }

    proptest! {
        #[test]
        fn serial_is_revoked_until_it_is_the_last_of_a_node_that_is_not(
            events in proptest::collection::vec((0_usize..3, 0_u8..4), 0..60),
        ) {
            let mut nodes = [spec(None, &[], false), spec(None, &[], false), spec(None, &[], false)];
            let mut list = BTreeSet::new();
            let mut all = BTreeSet::new();
            for (count, (index, event)) in events.into_iter().enumerate() {
                let node = &mut nodes[index];
                match event {
                    0 => node.revoked = true,
                    1 => node.revoked = false,
                    2 => {
                        let serial = format!("{count:016x}");
                        *node = recorded(Some(node), &used(1, &serial, true)).unwrap();
                        all.insert(serial);
                    }
                    // The object is deleted and made again.
                    _ => *node = spec(None, &[], false),
                }
                let before = list.clone();
                list = revoked_serials(&nodes, &list);
                let valid: BTreeSet<String> = nodes
                    .iter()
                    .filter(|node| !node.revoked)
                    .filter_map(|node| node.certificate_serials.last().cloned())
                    .collect();
                prop_assert!(list.is_disjoint(&valid));
                prop_assert!(before.difference(&valid).all(|serial| list.contains(serial)));
                // The list is the same without the previous one, for nodes that still exist.
                let rebuilt = revoked_serials(&nodes, &BTreeSet::new());
                prop_assert!(rebuilt.is_subset(&list) && list.is_subset(&all));
                for node in &nodes {
                    prop_assert!(node.certificate_serials.len() <= MAX_SERIALS);
                    let is_listed = |serial: &String| list.contains(serial) || valid.contains(serial);
                    prop_assert!(node.certificate_serials.iter().all(is_listed));
                }
            }
        }
    }
}
