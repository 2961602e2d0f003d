//! Who shares a model, and when it goes.

use std::{collections::BTreeSet, fs, os::unix::fs::MetadataExt as _, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use neptune_models::{Digest, Phase, Progress, Store, Want};
use tokio::sync::watch;

use crate::{
    archives::{file, tar},
    server::{Reply, Server, ranged},
    stage::{Stage, noise, policy},
};

#[tokio::test]
async fn many_who_want_one_digest_download_once_and_all_hear_of_it() {
    let body = noise(300_000, 10);
    let digest = Digest::of_bytes(&body);
    let pace = Some((30_000, Duration::from_millis(50)));
    let server = {
        let body = Bytes::from(body);
        Server::start(move |request| Reply { pace, ..ranged(request, &body, "\"1\"") }).await
    };
    let stage = Stage::new();
    let fetches = (0..8).map(|at| {
        let (store, url) = (stage.store.clone(), format!("{}/mirror-{at}", server.url));
        async move {
            let (sender, told) = watch::channel(Progress::default());
            let want = Want::parse(&url, Some(digest)).unwrap();
            let found = store.ensure(&want, &sender).await.unwrap();
            let told = told.borrow().clone();
            assert_eq!((told.received, told.phase), (300_000, Phase::Finishing));
            found.path
        }
    });
    let paths: BTreeSet<_> = join_all(fetches).await.into_iter().collect();
    assert_eq!((paths.len(), server.requests()), (1, 1));
}

#[tokio::test]
async fn a_model_that_several_urls_turn_out_to_be_is_placed_once() {
    for form in ["bin", "tar"] {
        let body = Bytes::from(tar(&[file("m", &noise(300_000, 12))]));
        let server = Server::of(body).await;
        let stage = Stage::new();
        let fetches = (0..24).map(|at| {
            let (stage, url) = (&stage, format!("{}/{at}.{form}", server.url));
            async move {
                let found = stage.fetch(&url, None).await.unwrap();
                let inode = fs::metadata(&found.path).unwrap().ino();
                (found, inode)
            }
        });
        let found = join_all(fetches).await;
        assert_eq!(server.requests(), found.len(), "{form}: fetched once for each URL");
        for (artifact, inode) in &found {
            assert_eq!(fs::metadata(&artifact.path).unwrap().ino(), *inode, "replaced in use");
        }
        assert!(found.iter().all(|(artifact, _)| artifact.path == found[0].0.path));
    }
}

#[tokio::test]
async fn who_stops_waiting_stops_nobody_and_what_came_is_kept() {
    let body = Bytes::from(noise(1_000_000, 11));
    let digest = Digest::of_bytes(&body);
    let pace = Some((20_000, Duration::from_millis(20)));
    let server =
        Server::start(move |request| Reply { pace, ..ranged(request, &body, "\"1\"") }).await;
    let stage = Stage::new();
    let want = Want::parse(&format!("{}/m", server.url), Some(digest)).unwrap();
    let halfway = |at: u64| {
        let (store, want) = (stage.store.clone(), want.clone());
        async move {
            let (sender, mut told) = watch::channel(Progress::default());
            tokio::select! {
                _ = store.ensure(&want, &sender) => panic!("it is not there yet"),
                _ = told.wait_for(|progress| progress.received > at) => {}
            }
        }
    };
    tokio::join!(halfway(200_000), halfway(400_000));
    assert_eq!(server.requests(), 1);
    let found = stage.fetch(&format!("{}/m", server.url), Some(digest)).await.unwrap();
    assert_eq!(found.digest, digest);
    let spans = server.spans();
    assert_eq!(spans.len(), 2);
    assert!(spans[1].0 >= 400_000, "{spans:?}");

    stage.store.abandon(&want).await.unwrap();
    assert!(stage.store.present(&want).is_some(), "only what is on its way is abandoned");
}

#[tokio::test]
async fn collection_takes_the_oldest_and_never_what_is_kept_or_held() {
    let dir = tempfile::tempdir().unwrap();
    let offered = dir.path().canonicalize().unwrap();
    let stage =
        Stage::with(neptune_models::Policy { file_roots: vec![offered.clone()], ..policy() });
    let mut digests = Vec::new();
    let mut held = None;
    for at in 0..6u8 {
        let path = offered.join(format!("{at}"));
        fs::write(&path, vec![at; 100]).unwrap();
        let found = stage.fetch(path.to_str().unwrap(), None).await.unwrap();
        digests.push(found.digest);
        if at == 1 {
            held = Some(found);
        }
        // The order is by the millisecond.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let present = || -> Vec<usize> {
        let there =
            |digest| stage.store.present(&Want::parse("/x", Some(digest)).unwrap()).is_some();
        (0..6).filter(|at| there(digests[*at])).collect()
    };
    assert_eq!(stage.store.collect(&BTreeSet::from([digests[0]]), 2).unwrap(), 200);
    assert_eq!(present(), [0, 1, 4, 5]);
    drop(held);
    assert_eq!(stage.store.collect(&BTreeSet::from([digests[0]]), 0).unwrap(), 300);
    assert_eq!(present(), [0]);
    assert_eq!(fs::read_dir(stage.root().join("trash")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(stage.root().join("known")).unwrap().count(), 1);
    drop(stage.store);
    let store = Store::open(&dir.path().join("none"), policy()).unwrap();
    assert_eq!(store.collect(&BTreeSet::new(), 0).unwrap(), 0);
}
