//! URLs that are refused by default.

use neptune_store::{ModelError, ModelErrorClass, StorePolicy};

use crate::fixture::StoreFixture;

#[tokio::test]
async fn local_metadata_and_malformed_urls_are_refused_with_a_remedy() {
    let fixture = StoreFixture::with(StorePolicy::default());
    let cases = [
        ("http://127.0.0.1/m", "loopback"),
        ("http://127.1/m", "loopback"),
        ("http://2130706433/m", "loopback"),
        ("http://0x7f000001/m", "loopback"),
        ("http://0177.0.0.1/m", "loopback"),
        ("http://127.0.0.1.:80/m", "loopback"),
        ("http://１２７.0.0.1/m", "loopback"),
        ("http://localhost/m", "loopback"),
        ("http://LOCALHOST:8080/m", "loopback"),
        ("https://127.0.0.1/m", "loopback"),
        ("http://0.0.0.0/m", "unspecified"),
        ("http://0/m", "unspecified"),
        ("http://[::]/m", "unspecified"),
        ("http://[::1]/m", "loopback"),
        ("http://[0:0:0:0:0:0:0:1]/m", "loopback"),
        ("http://[::ffff:127.0.0.1]/m", "loopback"),
        ("http://[::ffff:7f00:1]/m", "loopback"),
        ("http://[::127.0.0.1]/m", "loopback"),
        ("http://[64:ff9b::7f00:1]/m", "loopback"),
        ("http://[2002:7f00:1::]/m", "loopback"),
        ("http://[fe80::1]/m", "link-local"),
        ("http://[ff02::1]/m", "multicast"),
        ("http://[fd00:ec2::254]/m", "metadata"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://169.254.1.1/m", "link-local"),
        ("http://2852039166/m", "metadata"),
        ("http://[::ffff:a9fe:a9fe]/m", "metadata"),
        ("http://[64:ff9b::a9fe:a9fe]/m", "metadata"),
        ("http://100.100.100.200/m", "metadata"),
        ("http://224.0.0.1/m", "multicast"),
        ("http://255.255.255.255/m", "reserved"),
        ("http://models.example@127.0.0.1/m", "loopback"),
        ("http://models.example:80@169.254.169.254/m", "metadata"),
        ("http://127.0.0.1#@models.example/m", "loopback"),
        ("http://127.0.0.1?@models.example/m", "loopback"),
        ("http://models.example\\@127.0.0.1/m", "backslash"),
        ("http:/127.0.0.1/m", "must be followed"),
        ("http:///127.0.0.1/m", "must be followed"),
        ("http:\\\\127.0.0.1/m", "must be followed"),
        ("http://127.0.0.1\n.models.example/m", "control"),
        ("http://[::1%25lo]/m", ""),
        ("http://127.0.0.1:99999/m", ""),
        ("http://", ""),
        ("ftp://models.example/m", "scheme \"ftp\""),
        ("gopher://127.0.0.1:6379/_x", "scheme \"gopher\""),
        ("data:text/plain,x", "scheme \"data\""),
        ("unix:/var/run/docker.sock", "scheme \"unix\""),
        ("javascript:alert(1)", "scheme \"javascript\""),
        ("file://etc/passwd", "file:///absolute"),
        ("file://models.example/etc/passwd", "file:///absolute"),
        ("file:///models/../etc/passwd", "file:///absolute"),
        ("file:///models/%2e%2e/etc/passwd", "file:///absolute"),
        ("file:///etc/passwd", "outside"),
        ("/models/../etc/passwd", "must not contain"),
        ("../etc/passwd", "neither"),
        ("s3://", "s3://bucket/key"),
        ("s3://Bucket/m", "bucket name"),
        ("s3://a@169.254.169.254/m", "bucket name"),
        ("s3://bucket/../other/m", "object key"),
        ("s3://bucket/", "object key"),
        ("", "is empty"),
    ];
    for (url, reason) in cases {
        let error = fixture.fetch(url, None).await.expect_err(url);
        assert!(
            error.class() == ModelErrorClass::Permanent && error.to_string().contains(reason),
            "{url}: {error}"
        );
        let remedy = ["correct", "use another", "use http", "put the file in"];
        assert!(remedy.iter().any(|remedy| error.to_string().contains(remedy)), "{url}: {error}");
        let is_refused_address = matches!(*error, ModelError::AddressRefused { .. });
        assert!(!is_refused_address || error.to_string().contains("allow the address"), "{error}");
    }
    assert!(!crate::fixture::files(&fixture.root()).iter().any(|path| path.ends_with("model")));
}
