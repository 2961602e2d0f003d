//! Any order of changes, cuts, aborted syncs and restarts ends at the data of the source.

use std::{fs, io::Write as _, time::Duration};

use neptune_share::replicas::{Deletions, FileEnd};
use proptest::prelude::*;

use crate::fixture::{Fixture, files, noise};

#[derive(Debug, Clone)]
enum Step {
    Write(u8, usize, u64),
    Append(u8, usize, u64),
    Remove(u8),
    Rename(u8, u8),
    /// The connection is cut after so many bytes.
    CutSync(u64),
    /// The task of the replica is aborted after so many milliseconds, and another one begins.
    AbortSync(u64),
    /// The process of the replica ends.
    Restart(bool),
    /// Somebody else changes the copy.
    ChangeCopy(u8),
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let (file, bytes) = (0..3_u8, 0..2_500_000_usize);
    prop_oneof![
        (file.clone(), bytes.clone(), 0..3_u64).prop_map(|(a, b, c)| Step::Write(a, b, c)),
        (file.clone(), bytes, 3..6_u64).prop_map(|(a, b, c)| Step::Append(a, b, c)),
        file.clone().prop_map(Step::Remove),
        (file.clone(), file.clone()).prop_map(|(a, b)| Step::Rename(a, b)),
        (0..2_000_000_u64).prop_map(Step::CutSync),
        (0..60_u64).prop_map(Step::AbortSync),
        any::<bool>().prop_map(Step::Restart),
        file.prop_map(Step::ChangeCopy),
        Just(Step::Sync),
    ]
}

async fn run(steps: Vec<Step>) {
    let fixture = Fixture::start(FileEnd::Whole).await;
    let path = |file: u8| fixture.data().join(format!("{file}.log"));
    let mut replica = fixture.replica(Deletions::Follow, false);
    let mut is_changed = false;
    for step in steps {
        match step {
            Step::Write(file, bytes, seed) => fs::write(path(file), noise(bytes, seed)).unwrap(),
            Step::Append(file, bytes, seed) => {
                let file = fs::File::options().create(true).append(true).open(path(file));
                file.unwrap().write_all(&noise(bytes, seed)).unwrap();
            }
            Step::Remove(file) => drop(fs::remove_file(path(file))),
            Step::Rename(from, to) => drop(fs::rename(path(from), path(to))),
            Step::CutSync(bytes) => {
                let generation = fixture.scan(false).await;
                fixture.link.cut_after(bytes);
                let _ = fixture.sync(&mut replica, &generation).await;
                fixture.link.restore();
            }
            Step::AbortSync(milliseconds) => {
                let generation = fixture.scan(false).await;
                let sync = fixture.sync(&mut replica, &generation);
                let _ = tokio::time::timeout(Duration::from_millis(milliseconds), sync).await;
                // The next one waits for file access that has begun.
                drop(replica);
                replica = fixture.replica(Deletions::Follow, false);
            }
            Step::Restart(is_full) => {
                drop(replica);
                replica = fixture.replica(Deletions::Follow, is_full);
            }
            Step::ChangeCopy(file) => {
                let copy = fixture.copy().join(format!("{file}.log"));
                fs::write(copy, noise(10_000, 9)).unwrap();
                is_changed = true;
                replica = replica.reopen(false).unwrap();
            }
            Step::Sync => {
                let generation = fixture.scan(false).await;
                fixture.sync(&mut replica, &generation).await.unwrap();
                is_changed = false;
                assert_eq!(files(&fixture.copy()), files(&fixture.data()));
            }
        }
        assert!(replica.local_changes() == 0 || is_changed, "its own changes are no others'");
    }
    // The last scan finds edits that kept size and time.
    let generation = fixture.scan(true).await;
    fixture.sync(&mut replica, &generation).await.unwrap();
    assert_eq!(replica.root(), generation.root);
    assert_eq!(files(&fixture.copy()), files(&fixture.data()));
    assert_eq!(replica.reopen(true).unwrap().local_changes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_changes_and_interruptions_converges(
        steps in prop::collection::vec(step(), 1..14)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run(steps));
    }
}
