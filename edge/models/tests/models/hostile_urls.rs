//! URLs that a node does not ask, by default.

use neptune_models::{Class, ModelError, Policy};

use crate::stage::Stage;

#[tokio::test]
async fn urls_of_the_node_itself_of_clouds_and_of_nowhere_are_refused_with_their_reason() {
    let stage = Stage::with(Policy::default());
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
        ("http:/127.0.0.1/m", "have to follow"),
        ("http:///127.0.0.1/m", "have to follow"),
        ("http:\\\\127.0.0.1/m", "have to follow"),
        ("http://127.0.0.1\n.models.example/m", "control"),
        ("http://[::1%25lo]/m", ""),
        ("http://127.0.0.1:99999/m", ""),
        ("http://", ""),
        ("ftp://models.example/m", "`ftp` is not known"),
        ("gopher://127.0.0.1:6379/_x", "`gopher` is not known"),
        ("data:text/plain,x", "`data` is not known"),
        ("unix:/var/run/docker.sock", "`unix` is not known"),
        ("javascript:alert(1)", "`javascript` is not known"),
        ("file://etc/passwd", "file:///absolute"),
        ("file://models.example/etc/passwd", "file:///absolute"),
        ("file:///models/../etc/passwd", "file:///absolute"),
        ("file:///models/%2e%2e/etc/passwd", "file:///absolute"),
        ("file:///etc/passwd", "not below"),
        ("/models/../etc/passwd", "not followed"),
        ("../etc/passwd", "neither"),
        ("s3://", "s3://bucket/key"),
        ("s3://Bucket/m", "a bucket is named"),
        ("s3://a@169.254.169.254/m", "a bucket is named"),
        ("s3://bucket/../other/m", "the key"),
        ("s3://bucket/", "the key"),
        ("", "neither"),
    ];
    for (url, why) in cases {
        let error = stage.fetch(url, None).await.expect_err(url);
        assert!(error.class() == Class::Stuck && error.to_string().contains(why), "{url}: {error}");
        let remedy = ["correct", "name another", "use http", "put it below"];
        assert!(remedy.iter().any(|remedy| error.to_string().contains(remedy)), "{url}: {error}");
        let is_refused_address = matches!(*error, ModelError::AddressRefused { .. });
        assert!(!is_refused_address || error.to_string().contains("allow the address"), "{error}");
    }
    assert!(!crate::stage::files(&stage.root()).iter().any(|path| path.ends_with("model")));
}
