//! Chooses the port of a cloud worker that an agent runs in the host network of its node. Pure.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use neptune_api::JointInferenceService;
use sha2::{Digest as _, Sha256};

/// The range of ports: above well-known services, below the ephemeral ports of Linux.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// The port of `service` among all services whose cloud worker is on the same node.
///
/// A hash of its name, increased past the ports of older services. Older services choose first, so
/// a new service never changes the port of another one.
pub fn port(service: &JointInferenceService, on_node: &[&JointInferenceService]) -> u16 {
    let mut older: Vec<_> =
        on_node.iter().copied().filter(|other| age(other) < age(service)).collect();
    older.sort_by_key(|other| age(other));
    let mut taken = BTreeSet::new();
    for other in older {
        let port = choose(other, &taken);
        taken.insert(port);
    }
    choose(service, &taken)
}

/// The services whose port is another one with `service` than without it: younger ones whose
/// preferred port it takes, directly or by moving others.
pub fn moved_by<'a>(
    service: &JointInferenceService,
    on_node: &[&'a JointInferenceService],
) -> Vec<&'a JointInferenceService> {
    let mut others: Vec<_> = on_node
        .iter()
        .copied()
        .filter(|other| other.metadata.uid != service.metadata.uid)
        .collect();
    others.sort_by_key(|other| age(other));
    let (mut with, mut without) = (BTreeSet::new(), BTreeSet::new());
    let mut moved = Vec::new();
    let mut is_placed = false;
    for other in others {
        if !is_placed && age(service) < age(other) {
            with.insert(choose(service, &with));
            is_placed = true;
        }
        let port = choose(other, &without);
        without.insert(port);
        // Until the service is placed both sets are equal.
        let port_with = if is_placed { choose(other, &with) } else { port };
        with.insert(port_with);
        if port != port_with {
            moved.push(other);
        }
    }
    moved
}

fn age(service: &JointInferenceService) -> (Option<Timestamp>, Option<&str>) {
    let metadata = &service.metadata;
    (metadata.creation_timestamp.as_ref().map(|time| time.0), metadata.uid.as_deref())
}

fn choose(service: &JointInferenceService, taken: &BTreeSet<u16>) -> u16 {
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let name = service.metadata.name.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{namespace}/{name}"));
    let hash = u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"));
    let preferred = u16::try_from(hash % u64::from(COUNT)).expect("COUNT fits");
    (0..COUNT)
        .map(|step| FIRST + (preferred + step) % COUNT)
        .find(|port| !taken.contains(port))
        .unwrap_or(FIRST + preferred)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_api::JointInferenceServiceSpec;

    use super::*;

    fn service(name: &str, created: i64) -> JointInferenceService {
        let mut service = JointInferenceService::new(name, JointInferenceServiceSpec::default());
        service.metadata.uid = Some(format!("uid-{name}"));
        let created = Timestamp::from_second(created).unwrap();
        service.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created));
        service
    }

    #[test]
    fn port_is_independent_of_younger_services() {
        let all: Vec<_> = (0..200).map(|n| service(&n.to_string(), n)).collect();
        let all: Vec<_> = all.iter().collect();
        for (n, one) in all.iter().enumerate() {
            assert_eq!(port(one, &all), port(one, &all[..=n]));
        }
    }

    #[test]
    fn only_younger_services_with_a_taken_port_are_moved() {
        let all: Vec<_> = (0..400).map(|n| service(&n.to_string(), n)).collect();
        let all: Vec<_> = all.iter().collect();
        let (oldest, youngest) = (all[0], all[399]);
        assert!(moved_by(youngest, &all).is_empty(), "a new service enqueues no other");
        for removed in [oldest, all[100]] {
            let rest: Vec<_> = all
                .iter()
                .copied()
                .filter(|other| other.metadata.uid != removed.metadata.uid)
                .collect();
            let expected: Vec<_> = rest
                .iter()
                .filter(|other| port(other, &all) != port(other, &rest))
                .map(|other| other.metadata.name.clone())
                .collect();
            let moved: Vec<_> =
                moved_by(removed, &all).iter().map(|other| other.metadata.name.clone()).collect();
            assert_eq!(moved, expected);
        }
    }

    #[test]
    fn no_two_services_of_a_node_share_a_port() {
        // More than a hundred of 2,000 names collide in 10,000 ports.
        let mut taken = BTreeSet::new();
        let mut moved = 0;
        for n in 0..2_000 {
            let one = service(&n.to_string(), n);
            let preferred = choose(&one, &BTreeSet::new());
            let chosen = choose(&one, &taken);
            assert!((FIRST..FIRST + COUNT).contains(&chosen));
            moved += u32::from(chosen != preferred);
            assert!(taken.insert(chosen));
        }
        assert!(moved > 100, "{moved}");
    }

    #[test]
    fn services_of_one_second_are_ordered_by_uid() {
        let (a, b) = (service("a", 1), service("b", 1));
        assert!(age(&a) < age(&b));
    }
}
