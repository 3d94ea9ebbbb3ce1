module foxhunt.test/argo

go 1.25

require github.com/argoproj/argo-workflows/v4 v4.0.5
