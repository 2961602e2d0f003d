//! Decides which pulled image to remove. `image_collector.rs` asks the engine and removes.
//!
//! | image | then |
//! |---|---|
//! | not on the engine, or another one of that reference | the record is dropped, nothing is removed |
//! | used by a container, a worker or a model server | unused for 0 s |
//! | unused for the maximum age | removed |
//! | unused for the minimum age, and the unused images exceed their disk space | the oldest is removed |
//!
//! References of one image are used, and removed, together.

use std::{collections::BTreeMap, time::Duration};

use crate::domain::pulled_image::{ImageGcLimits, ObservedImage, PulledImage, PulledImages};

/// The records after one decision, and the image to remove.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct ImageGcPlan {
    /// The records to store.
    pub images: PulledImages,
    /// The image to remove, if any. Decide again afterwards.
    pub removal: Option<ImageRemoval>,
}

/// An unused image to remove, and what its removal frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRemoval {
    pub id: String,
    /// The references by which this agent pulled it.
    pub references: Vec<String>,
    pub unused: Duration,
    /// The disk space that the removal frees; 0 if the image has other tags.
    pub bytes: u64,
}

/// Adds `elapsed` to the time that the images are unused, and chooses the next one to remove.
pub fn plan(
    images: &PulledImages,
    observed: &[ObservedImage],
    elapsed: Duration,
    limits: &ImageGcLimits,
) -> ImageGcPlan {
    let known = observed.iter().filter_map(|candidate| {
        let image = images.get(&candidate.reference).filter(|image| image.id == candidate.id)?;
        Some((candidate, image))
    });
    let known: Vec<_> = known.collect();
    let mut unused: BTreeMap<&str, Vec<(&ObservedImage, Duration)>> = BTreeMap::new();
    let mut next = PulledImages::new();
    for (candidate, image) in &known {
        let has_use = |(other, _): &(&ObservedImage, _)| other.id == candidate.id && other.is_used;
        let is_used = known.iter().any(has_use);
        let age = if is_used { Duration::ZERO } else { image.unused.saturating_add(elapsed) };
        if !is_used {
            unused.entry(&candidate.id).or_default().push((candidate, age));
        }
        next.insert(
            candidate.reference.clone(),
            PulledImage { id: candidate.id.clone(), unused: age },
        );
    }
    let removals = unused.into_values().map(|references| removal(&references));
    ImageGcPlan { images: next, removal: next_removal(removals.collect(), limits) }
}

/// The removal of all references of one image.
fn removal(references: &[(&ObservedImage, Duration)]) -> ImageRemoval {
    let (first, _) = references[0];
    // A reference with a digest is no tag.
    let own_tags = references.iter().filter(|(image, _)| !image.reference.contains('@')).count();
    ImageRemoval {
        id: first.id.clone(),
        references: references.iter().map(|(image, _)| image.reference.clone()).collect(),
        unused: references.iter().map(|(_, age)| *age).min().unwrap_or_default(),
        bytes: if first.tags > own_tags { 0 } else { first.size },
    }
}

fn next_removal(mut unused: Vec<ImageRemoval>, limits: &ImageGcLimits) -> Option<ImageRemoval> {
    unused.sort_by(|a, b| b.unused.cmp(&a.unused).then_with(|| a.id.cmp(&b.id)));
    let bytes = unused.iter().fold(0_u64, |sum, image| sum.saturating_add(image.bytes));
    let is_too_large = limits.max_bytes.is_some_and(|max| bytes > max);
    unused.into_iter().find(|image| {
        let is_too_old = limits.max_age.is_some_and(|max| image.unused >= max);
        let makes_room = is_too_large && image.bytes > 0;
        image.unused >= limits.min_age && (is_too_old || makes_room)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const LIMITS: ImageGcLimits =
        ImageGcLimits { max_bytes: Some(100), min_age: HOUR, max_age: Some(Duration::MAX) };

    /// Images of 60 bytes with one tag each.
    fn observed(references: &[&str]) -> Vec<ObservedImage> {
        let image = |reference: &&str| ObservedImage {
            reference: (*reference).to_owned(),
            id: format!("id-{reference}"),
            size: 60,
            tags: 1,
            is_used: false,
        };
        references.iter().map(image).collect()
    }

    /// The records of these images, unused for this many hours.
    fn records(images: &[ObservedImage], hours: &[u32]) -> PulledImages {
        let record = |(image, hours): (&ObservedImage, &u32)| {
            let record = PulledImage { id: image.id.clone(), unused: HOUR * *hours };
            (image.reference.clone(), record)
        };
        images.iter().zip(hours).map(record).collect()
    }

    fn removed(
        hours: &[u32],
        observed: &[ObservedImage],
        limits: &ImageGcLimits,
    ) -> Option<Vec<String>> {
        let plan = plan(&records(observed, hours), observed, Duration::ZERO, limits);
        plan.removal.map(|removal| removal.references)
    }

    #[test]
    fn longest_unused_image_is_removed_while_unused_images_are_too_large() {
        let images = observed(&["a", "b"]);
        let b = Some(vec!["b".to_owned()]);
        assert_eq!(removed(&[2, 3], &images, &LIMITS), b);
        assert_eq!(removed(&[3], &images[..1], &LIMITS), None, "60 of 100 bytes");
        assert_eq!(removed(&[0, 0], &images, &LIMITS), None, "younger than the minimum age");
        let off = ImageGcLimits { max_bytes: None, max_age: None, ..LIMITS };
        assert_eq!(removed(&[2, 3], &images, &off), None);
        let by_age = ImageGcLimits { max_bytes: None, max_age: Some(HOUR * 3), ..LIMITS };
        assert_eq!(removed(&[2, 3], &images, &by_age), b);
        assert_eq!(removed(&[2, 2], &images, &by_age), None);
    }

    #[test]
    fn used_image_is_not_removed_and_its_age_is_reset() {
        let mut images = observed(&["a", "b"]);
        images[1].is_used = true;
        let by_age = ImageGcLimits { max_age: Some(HOUR), ..LIMITS };
        let plan = plan(&records(&images, &[0, 9]), &images, HOUR / 2, &by_age);
        assert_eq!(plan.removal, None);
        let ages = plan.images.values().map(|image| image.unused);
        assert_eq!(ages.collect::<Vec<_>>(), [HOUR / 2, Duration::ZERO]);
    }

    #[test]
    fn references_of_one_image_are_used_and_removed_together() {
        let mut images = observed(&["r/a:1", "r/a@sha256:00"]);
        images[1].id = images[0].id.clone();
        let by_age = ImageGcLimits { max_age: Some(HOUR * 2), ..LIMITS };
        let both = Some(vec!["r/a:1".to_owned(), "r/a@sha256:00".to_owned()]);
        assert_eq!(removed(&[2, 3], &images, &by_age), both);
        assert_eq!(removed(&[1, 3], &images, &by_age), None, "one is younger");
        images[0].is_used = true;
        assert_eq!(removed(&[2, 3], &images, &by_age), None);
    }

    #[test]
    fn image_with_a_tag_of_a_user_is_removed_only_by_age_and_frees_nothing() {
        let mut images = observed(&["a", "b"]);
        images[0].tags = 2;
        assert_eq!(removed(&[9, 2], &images, &LIMITS), None, "only 60 bytes can be freed");
        let by_age = ImageGcLimits { max_age: Some(HOUR * 3), ..LIMITS };
        assert_eq!(removed(&[9, 2], &images, &by_age), Some(vec!["a".to_owned()]));
    }

    #[test]
    fn image_that_the_agent_did_not_pull_is_not_removed() {
        let all = ImageGcLimits { max_bytes: Some(0), min_age: Duration::ZERO, max_age: None };
        let images = observed(&["a"]);
        let of_user = plan(&PulledImages::new(), &images, HOUR, &all);
        assert_eq!(of_user, ImageGcPlan { images: PulledImages::new(), removal: None });
        // The tag was moved to another image, or the image was removed.
        let mut moved = images.clone();
        moved[0].id = "another".into();
        for observed in [moved, Vec::new()] {
            let plan = plan(&records(&images, &[9]), &observed, HOUR, &all);
            assert_eq!(plan, ImageGcPlan { images: PulledImages::new(), removal: None });
        }
    }

    proptest! {
        #[test]
        fn collection_ends_within_the_limits_and_spares_used_and_young_images(
            specs in prop::collection::vec((0..5_u8, any::<bool>(), 1..3_usize, 0..48_u32), 0..12),
            max_bytes in prop::option::of(0..400_u64),
            max_age in prop::option::of(2..40_u32),
        ) {
            let limits = ImageGcLimits { max_bytes, min_age: HOUR * 2, max_age: max_age.map(|age| HOUR * age) };
            let mut images: Vec<ObservedImage> = specs.iter().enumerate().map(|(n, (id, is_used, tags, _))| {
                let id = id.to_string();
                ObservedImage { reference: format!("r:{n}"), size: 60, tags: *tags, id, is_used: *is_used }
            }).collect();
            let hours: Vec<u32> = specs.iter().map(|(_, _, _, hours)| *hours).collect();
            let mut pulled = records(&images, &hours);
            let initial = images.len();
            for _ in 0..=initial {
                let decision = plan(&pulled, &images, Duration::ZERO, &limits);
                pulled = decision.images;
                let Some(removal) = decision.removal else { break };
                let is_removed = |image: &ObservedImage| removal.references.contains(&image.reference);
                prop_assert!(!images.iter().any(|image| image.id == removal.id && image.is_used));
                prop_assert!(removal.references.iter().all(|it| pulled[it].unused >= limits.min_age));
                prop_assert!(!limits.is_off() && images.iter().any(is_removed));
                images.retain(|image| !is_removed(image));
            }
            let last = plan(&pulled, &images, Duration::ZERO, &limits);
            prop_assert_eq!(last.removal, None);
            // What is left and too old is used or was pulled again lately.
            for image in &images {
                let group = || images.iter().filter(|other| other.id == image.id);
                let youngest = group().map(|other| pulled[&other.reference].unused).min().unwrap();
                let is_used = group().any(|other| other.is_used);
                prop_assert!(is_used || limits.max_age.is_none_or(|max| youngest < max));
            }
        }
    }
}
