//! Decides which blocks a replica fetches, and which it has already. Pure.

use std::collections::{BTreeMap, HashMap};

use neptune_transfer::Digest;

use crate::replicas::manifest::{BLOCK, FileBlocks, Manifest, RelativePath};

/// What happens to files that the source removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletions {
    /// The replica removes them as well.
    Follow,
    /// The replica keeps them.
    Keep,
}

/// The place from which a block of a new file comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockOrigin {
    /// A file of the replica has the block at this index.
    Local(RelativePath, usize),
    /// The block is fetched from the source.
    Source,
}

/// What happens to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// It grew: everything from this block on is fetched and written after the file's end.
    Append(usize),
    /// It is new, or changed before its end: written beside it, then renamed.
    Rewrite(Vec<BlockOrigin>),
}

/// How a replica becomes equal to a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct SyncPlan {
    /// The files to write.
    pub changes: BTreeMap<RelativePath, FileChange>,
    /// The files that the source does not have.
    pub deletions: Vec<RelativePath>,
    /// Number of bytes to fetch.
    pub missing_bytes: u64,
}

/// Compares the files of a replica with those of the source.
pub fn compare(local: &BTreeMap<RelativePath, FileBlocks>, wanted: &Manifest) -> SyncPlan {
    let mut plan = SyncPlan::default();
    let mut places = None;
    for (path, file) in &wanted.files {
        let own = local.get(path);
        if own == Some(file) {
            continue;
        }
        if let Some(from) = own.and_then(|own| append_from(own, file)) {
            plan.missing_bytes += file.bytes - from as u64 * BLOCK;
            plan.changes.insert(path.clone(), FileChange::Append(from));
            continue;
        }
        let places = places.get_or_insert_with(|| places_of(local));
        let origins = origins(places, path, own, file);
        let missing = origins.iter().enumerate().filter(|(_, it)| **it == BlockOrigin::Source);
        plan.missing_bytes += missing.map(|(index, _)| file.block_length(index)).sum::<u64>();
        plan.changes.insert(path.clone(), FileChange::Rewrite(origins));
    }
    let deleted = local.keys().filter(|path| !wanted.files.contains_key(*path));
    plan.deletions = deleted.cloned().collect();
    plan
}

/// Returns the places of the blocks of one file that cannot be appended to.
pub(crate) fn origins_of(
    local: &BTreeMap<RelativePath, FileBlocks>,
    path: &RelativePath,
    file: &FileBlocks,
) -> Vec<BlockOrigin> {
    origins(&places_of(local), path, local.get(path), file)
}

fn origins(
    places: &Places<'_>,
    path: &RelativePath,
    own: Option<&FileBlocks>,
    file: &FileBlocks,
) -> Vec<BlockOrigin> {
    let blocks = file.blocks.iter().enumerate().map(|(index, digest)| {
        // The same place first: it is the likeliest, and needs no look-up.
        if own.is_some_and(|own| own.blocks.get(index) == Some(digest)) {
            return BlockOrigin::Local(path.clone(), index);
        }
        let place = places.get(digest);
        place.map_or(BlockOrigin::Source, |(path, at)| BlockOrigin::Local((*path).clone(), *at))
    });
    blocks.collect()
}

/// The first block to fetch if all full blocks of `own` are those of `wanted`, which is longer.
/// Whether the rest of `own` is a prefix shows when that block has arrived.
fn append_from(own: &FileBlocks, wanted: &FileBlocks) -> Option<usize> {
    let full = usize::try_from(own.bytes / BLOCK).ok()?;
    let is_prefix = own.bytes < wanted.bytes
        && own.bytes > 0
        && own.blocks.get(..full)? == wanted.blocks.get(..full)?;
    is_prefix.then_some(full)
}

/// A place of each block of the replica.
type Places<'a> = HashMap<Digest, (&'a RelativePath, usize)>;

fn places_of(local: &BTreeMap<RelativePath, FileBlocks>) -> Places<'_> {
    let files = local.iter();
    files
        .flat_map(|(path, file)| {
            file.blocks.iter().enumerate().map(move |(index, block)| (*block, (path, index)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// A file whose blocks are these numbers. The last block is shorter if `is_partial`.
    fn file(blocks: &[u8], is_partial: bool) -> FileBlocks {
        let bytes = blocks.len() as u64 * BLOCK - if is_partial { BLOCK / 2 } else { 0 };
        FileBlocks { bytes, blocks: blocks.iter().map(|it| Digest::of_bytes(&[*it])).collect() }
    }

    fn files(files: &[(&str, FileBlocks)]) -> BTreeMap<RelativePath, FileBlocks> {
        files.iter().map(|(path, file)| (path.parse().unwrap(), file.clone())).collect()
    }

    fn plan(local: &[(&str, FileBlocks)], wanted: &[(&str, FileBlocks)]) -> SyncPlan {
        compare(&files(local), &Manifest { generation: 1, files: files(wanted) })
    }

    #[test]
    fn equal_directories_have_an_empty_plan() {
        let same = [("a", file(&[1, 2], true)), ("b", file(&[], false))];
        assert_eq!(plan(&same, &same), SyncPlan::default());
    }

    #[test]
    fn file_that_grew_is_fetched_from_its_last_partial_block() {
        let plan = plan(&[("a", file(&[1, 2, 3], true))], &[("a", file(&[1, 2, 9, 4], false))]);
        assert_eq!(plan.changes[&"a".parse().unwrap()], FileChange::Append(2));
        assert_eq!(plan.missing_bytes, 2 * BLOCK);
    }

    #[test]
    fn edited_block_is_fetched_alone() {
        let plan = plan(&[("a", file(&[1, 2, 3], false))], &[("a", file(&[1, 9, 3], false))]);
        let path: RelativePath = "a".parse().unwrap();
        let local = |index| BlockOrigin::Local(path.clone(), index);
        let expected = FileChange::Rewrite(vec![local(0), BlockOrigin::Source, local(2)]);
        assert_eq!((&plan.changes[&path], plan.missing_bytes), (&expected, BLOCK));
    }

    #[test]
    fn renamed_file_needs_no_block() {
        let plan = plan(&[("a", file(&[1, 2], true))], &[("b", file(&[1, 2], true))]);
        assert_eq!((plan.missing_bytes, plan.deletions), (0, vec!["a".parse().unwrap()]));
    }

    fn any_files() -> impl Strategy<Value = BTreeMap<RelativePath, FileBlocks>> {
        let file = (prop::collection::vec(0..6_u8, 0..5), any::<bool>())
            .prop_map(|(blocks, is_partial)| file(&blocks, is_partial && !blocks.is_empty()));
        prop::collection::btree_map("[a-d]".prop_map(|it| it.parse().unwrap()), file, 0..5)
    }

    proptest! {
        #[test]
        fn executed_plan_makes_the_files_equal(local in any_files(), target in any_files()) {
            let wanted = Manifest { generation: 1, files: target };
            let plan = compare(&local, &wanted);
            let mut result = local.clone();
            let mut fetched = 0;
            for (path, change) in &plan.changes {
                let target = &wanted.files[path];
                match change {
                    FileChange::Append(from) => {
                        let own = &local[path];
                        prop_assert!(own.blocks[..*from] == target.blocks[..*from]);
                        prop_assert!(*from as u64 * BLOCK <= own.bytes);
                        fetched += target.bytes - *from as u64 * BLOCK;
                    }
                    FileChange::Rewrite(origins) => {
                        for (index, origin) in origins.iter().enumerate() {
                            match origin {
                                BlockOrigin::Local(from, at) => {
                                    prop_assert_eq!(local[from].blocks[*at], target.blocks[index]);
                                }
                                BlockOrigin::Source => fetched += target.block_length(index),
                            }
                        }
                    }
                }
                result.insert(path.clone(), target.clone());
            }
            for path in &plan.deletions {
                result.remove(path);
            }
            prop_assert_eq!(&result, &wanted.files);
            prop_assert_eq!(plan.missing_bytes, fetched);
            prop_assert_eq!(compare(&result, &wanted), SyncPlan::default());
        }
    }
}
